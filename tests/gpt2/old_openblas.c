/* Preloaded: an OpenBLAS that takes any CPU for a Prescott, until it is told otherwise. */
#include <stdlib.h>

char *openblas_get_corename(void);

char *openblas_get_corename(void)
{
    static char old[] = "Prescott";
    static char told[] = "SkylakeX";
    return getenv("OPENBLAS_CORETYPE") == NULL || getenv("OLD_OPENBLAS_STAYS") != NULL ? old : told;
}
