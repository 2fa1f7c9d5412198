/* Owns which plug-in for MPI is loaded. Invariant: never one for another MPI than the program
 * links, whose functions it would call with handles of its own. */
#include "comm/mpi/mpi_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/library.h"

/* One of the user's own goes before ours. */
#define OWN "libzero-mpi.so"
#define OPEN_MPI "libzero-mpi-openmpi.so"
#define MPICH "libzero-mpi-mpich.so"

/* NULL unless the program has a plug-in linked in. */
extern const zi_mpi_plugin zi_mpi_plugin_table __attribute__((weak));

const zi_mpi_plugin *zi_mpi;

static pthread_mutex_t load_mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the rest */
static zero_error load_error; /* status ZERO_OK: not tried, or loaded */

static const zi_library_symbol table_symbol = {"zi_mpi_plugin_table", 0, true};
/* Modules that an MPI loads by itself look for its functions among the global ones. */
static const zi_library plugin_library = {
    .symbols = &table_symbol,
    .symbol_count = 1,
    .global = true,
    .remedy = "configure libzero with -Dmpi=enabled, or compile its mpi_plugin.c with mpicc",
};

static zero_status mpi_api_take(const zi_mpi_plugin *plugin, const char *file)
{
    if (plugin->version != ZI_MPI_PLUGIN_VERSION) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "%s was compiled for another libzero, version %u and not %d; compile it again",
                file, plugin->version, ZI_MPI_PLUGIN_VERSION);
    }
    zi_mpi = plugin;
    return ZERO_OK;
}

/* Beside this library, or else where the loader looks. */
static zero_status load_plugin(const char *file, const zi_mpi_plugin **plugin)
{
    char path[4096];
    Dl_info self;
    const char *end = dladdr(&load_mutex, &self) != 0 ? strrchr(self.dli_fname, '/') : NULL;
    if (end != NULL) {
        const int folder = (int)(end + 1 - self.dli_fname);
        (void)snprintf(path, sizeof path, "%.*s%s", folder, self.dli_fname, file);
        if (access(path, F_OK) == 0) {
            return zi_library_load(&plugin_library, path, plugin);
        }
    }
    return zi_library_load(&plugin_library, file, plugin);
}

static zero_status find_plugin(bool pmi)
{
    const bool open_mpi = dlsym(RTLD_DEFAULT, "ompi_mpi_comm_world") != NULL;
    const bool linked = open_mpi || dlsym(RTLD_DEFAULT, "MPI_Init_thread") != NULL;
    const bool mpich = linked ? !open_mpi : pmi;
    const char *const files[] = {OWN, mpich ? MPICH : OPEN_MPI, mpich ? OPEN_MPI : MPICH};
    const size_t count = linked ? 2 : 3;
    zero_error error = {.status = ZERO_OK}; /* of the one that fits best */
    for (size_t i = 0; i < count; i++) {
        const zi_mpi_plugin *plugin = NULL;
        if (load_plugin(files[i], &plugin) == ZERO_OK) {
            return mpi_api_take(plugin, files[i]);
        }
        error = i == 1 ? *zero_last_error() : error;
    }
    return zi_error_adopt(&error);
}

static zero_status mpi_api_load(bool pmi)
{
    return &zi_mpi_plugin_table != NULL ? mpi_api_take(&zi_mpi_plugin_table, "mpi_plugin.c")
                                        : find_plugin(pmi);
}

zero_status zi_mpi_load(bool pmi)
{
    zero_status status = ZERO_OK;
    (void)pthread_mutex_lock(&load_mutex);
    if (load_error.status != ZERO_OK) {
        status = zi_error_adopt(&load_error);
    } else if (zi_mpi == NULL) {
        status = mpi_api_load(pmi);
        load_error = status != ZERO_OK ? *zero_last_error() : load_error;
    }
    (void)pthread_mutex_unlock(&load_mutex);
    return status;
}
