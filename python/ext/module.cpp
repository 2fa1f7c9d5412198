/* The extension zeroshard._zero: the library as zeroshard calls it. The names here are not a
 * contract; those of zeroshard are. */
#include "native.h"

NB_MODULE(_zero, module)
{
    errors_register(module);
    interrupts_register(module);
    world_register(module);
    model_register(module);
    options_register(module);
    engine_register(module);
}
