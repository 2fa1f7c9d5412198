/* Owns the table of NCCL's functions. Invariant: it is loaded once, or refused once. */
#include "comm/nccl/nccl_api.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "core/error.h"
#include "core/library.h"

#define LIBRARY "libnccl.so.2"

#define REQUIRED_ROW(member, symbol) {#symbol, offsetof(zi_nccl_api, member), true},
#define OPTIONAL_ROW(member, symbol) {#symbol, offsetof(zi_nccl_api, member), false},
static const zi_library_symbol symbols[] = {ZI_NCCL_REQUIRED(REQUIRED_ROW)
                                                ZI_NCCL_OPTIONAL(OPTIONAL_ROW)};
static const zi_library nccl_library = {
    .symbols = symbols,
    .symbol_count = sizeof symbols / sizeof symbols[0],
    .remedy = "install NCCL 2.22 or later or set LD_LIBRARY_PATH, or set tuning.transport = "
              "ZERO_TRANSPORT_HOST to stage through host memory",
};

static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static zi_nccl_api loaded_api;
static zero_error load_error; /* status ZERO_OK: loaded */
static const zi_nccl_api *replaced_api;

zero_status zi_nccl_api_load(const char *library, zi_nccl_api *api)
{
    memset(api, 0, sizeof *api);
    return zi_library_load(&nccl_library, library, api);
}

static void nccl_api_load(void)
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
        ZI_FAIL_NATIVE(ZERO_ERR_UNSUPPORTED, (int)result, "ncclGetVersion: %s",
                       api->get_error_string(result));
    }
    if (*version < ZI_NCCL_VERSION_MIN) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
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
        (void)pthread_once(&load_once, nccl_api_load);
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
