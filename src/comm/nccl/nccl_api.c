/* Owns the table of NCCL's functions. Invariant: a library that was loaded stays loaded, since its
 * threads may outlive every group. */
#include "comm/nccl/nccl_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

#define LIBRARY "libnccl.so.2"

/* A function and its place in the table. */
typedef struct symbol_row {
    const char *name;
    size_t at;
    bool required;
} symbol_row;

#define REQUIRED_ROW(member, symbol) {#symbol, offsetof(zi_nccl_api, member), true},
#define OPTIONAL_ROW(member, symbol) {#symbol, offsetof(zi_nccl_api, member), false},
static const symbol_row symbol_rows[] = {ZI_NCCL_REQUIRED(REQUIRED_ROW)
                                             ZI_NCCL_OPTIONAL(OPTIONAL_ROW)};

static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static zi_nccl_api loaded_api;
static zero_error load_error; /* status ZERO_OK: loaded */
static const zi_nccl_api *replaced_api;

static zero_status find_symbols(void *library, const char *name, zi_nccl_api *api)
{
    for (size_t i = 0; i < sizeof symbol_rows / sizeof symbol_rows[0]; i++) {
        const symbol_row *row = &symbol_rows[i];
        void *address = dlsym(library, row->name);
        if (address == NULL && row->required) {
            ZI_FAIL(ZERO_UNSUPPORTED,
                    "%s has no %s; install NCCL 2.22 or later, or set tuning.transport = "
                    "ZERO_TRANSPORT_HOST to stage through host memory",
                    name, row->name);
        }
        /* A function pointer from an object pointer, as dlsym means it. */
        memcpy((unsigned char *)api + row->at, &address, sizeof address);
    }
    return ZERO_OK;
}

zero_status zi_nccl_api_load(const char *library, zi_nccl_api *api)
{
    memset(api, 0, sizeof *api);
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        const char *text = dlerror();
        ZI_FAIL(ZERO_UNSUPPORTED,
                "cannot load %.40s (%.80s); install NCCL or set LD_LIBRARY_PATH, or set "
                "tuning.transport = ZERO_TRANSPORT_HOST to stage through host memory",
                library, text != NULL ? text : "no reason given");
    }
    const zero_status status = find_symbols(handle, library, api);
    if (status != ZERO_OK) {
        (void)dlclose(handle);
    }
    return status;
}

static void load(void)
{
    if (zi_nccl_api_load(LIBRARY, &loaded_api) != ZERO_OK) {
        load_error = *zero_last_error();
    }
}

static zero_status check_version(const zi_nccl_api *api, int *version)
{
    *version = 0;
    const ncclResult_t result = api->get_version(version);
    if (result != ncclSuccess) {
        ZI_FAIL_NATIVE(ZERO_UNSUPPORTED, (int)result, "ncclGetVersion: %s",
                       api->get_error_string(result));
    }
    if (*version < ZI_NCCL_VERSION_MIN) {
        ZI_FAIL(ZERO_UNSUPPORTED,
                "NCCL %d.%d.%d is too old; install 2.22 or later, or set tuning.transport = "
                "ZERO_TRANSPORT_HOST to stage through host memory",
                *version / 10000, *version / 100 % 100, *version % 100);
    }
    return ZERO_OK;
}

zero_status zi_nccl_api_get(const zi_nccl_api **api, int *version)
{
    *api = replaced_api;
    if (replaced_api == NULL) {
        (void)pthread_once(&load_once, load);
        if (load_error.status != ZERO_OK) {
            return zi_error_adopt(&load_error);
        }
        *api = &loaded_api;
    }
    return check_version(*api, version);
}

void zi_nccl_api_replace(const zi_nccl_api *api)
{
    replaced_api = api;
}
