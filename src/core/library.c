/* Owns the loading of shared libraries while the program runs. Invariant: a library whose functions
 * were handed out is never closed. */
#include "core/library.h"

#include <dlfcn.h>
#include <string.h>

#include "core/error.h"

zero_status zi_library_load(const zi_library *library, const char *file, void *table)
{
    void *handle = dlopen(file, RTLD_NOW | (library->global ? RTLD_GLOBAL : RTLD_LOCAL));
    if (handle == NULL) {
        const char *text = dlerror();
        ZI_FAIL(ZERO_ERR_UNSUPPORTED, "cannot load %.60s (%.60s); %s", file,
                text != NULL ? text : "no reason given", library->remedy);
    }
    for (size_t i = 0; i < library->symbol_count; i++) {
        const zi_library_symbol *symbol = &library->symbols[i];
        void *address = dlsym(handle, symbol->name);
        if (address == NULL && symbol->required) {
            (void)dlclose(handle);
            ZI_FAIL(ZERO_ERR_UNSUPPORTED, "%.40s has no %s; %s", file, symbol->name,
                    library->remedy);
        }
        /* A function pointer from an object pointer, as dlsym means it. */
        memcpy((unsigned char *)table + symbol->at, &address, sizeof address);
    }
    return ZERO_OK;
}

bool zi_library_complete(const zi_library *library, const void *table)
{
    for (size_t i = 0; i < library->symbol_count; i++) {
        const zi_library_symbol *symbol = &library->symbols[i];
        void *address = NULL;
        memcpy(&address, (const unsigned char *)table + symbol->at, sizeof address);
        if (address == NULL && symbol->required) {
            return false;
        }
    }
    return true;
}
