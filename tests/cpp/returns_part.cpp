/* A part without exceptions of a program that has them: its handles are other classes. */
#include <zero/zero.hpp>

zero_status status_without_exceptions();

zero_status status_without_exceptions()
{
    auto world = zero::World::self();
    auto model = zero::Model::create();
    if (!world || !model || !model->add_unit("unit", {{"weight", {4}}})) {
        return ZERO_ERR_STATE;
    }
    zero::Options options;
    options.shard_group = 7;
    return zero::Engine::create(*world, *model, options).status();
}
