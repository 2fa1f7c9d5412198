/* Owns the tests of routes: what goes up by the hops of gradients comes down by those of
 * parameters, whatever the degrees, and gradients lose bits at one hop at most. */
#include "plan_rig.h"

#include "layout/layout.h"

static const zero_sharding degrees[] = {
    {.world = 1, .param = 1, .grad = 1, .optimizer = 1},
    {.world = 8, .param = 1, .grad = 1, .optimizer = 1},
    {.world = 8, .param = 1, .grad = 1, .optimizer = 8},
    {.world = 8, .param = 1, .grad = 8, .optimizer = 8},
    {.world = 8, .param = 8, .grad = 8, .optimizer = 8},
    {.world = 8, .param = 2, .grad = 4, .optimizer = 4},
    {.world = 16, .param = 2, .grad = 4, .optimizer = 8},
    {.world = 16, .param = 4, .grad = 1, .optimizer = 8},
};
#define DEGREES (sizeof degrees / sizeof degrees[0])

TEST(sums_go_up_to_the_world_and_parameters_come_down)
{
    for (size_t i = 0; i < DEGREES; i++) {
        zi_hop hops[ZI_HOPS];
        uint32_t at = 1;
        zi_route_make(&degrees[i], hops);
        for (int k = 0; k < ZI_HOPS; k++) {
            CHECK_EQ(hops[k].high % hops[k].low, 0);
            CHECK_EQ(zi_hop_crosses(&hops[k]), zi_hop_size(&hops[k]) > 1);
            CHECK_EQ(hops[k].role, hops[k].sums ? ZERO_ROLE_GRAD : ZERO_ROLE_PARAM);
            if (hops[k].sums) {
                CHECK_EQ(zi_hop_given(&hops[k]), at);
                at = hops[k].high;
            }
        }
        CHECK_EQ(at, degrees[i].world);
        CHECK_EQ(zi_hop_received(&hops[ZI_HOP_BOUNDARY]), degrees[i].optimizer);
        CHECK_EQ(zi_hop_received(&hops[ZI_HOP_REPLICA]), degrees[i].optimizer);
        CHECK_EQ(zi_hop_given(&hops[ZI_HOP_UPDATED]), degrees[i].optimizer);
        CHECK_EQ(zi_hop_received(&hops[ZI_HOP_UPDATED]), zi_hop_given(&hops[ZI_HOP_GATHER]));
        CHECK_EQ(zi_hop_received(&hops[ZI_HOP_GATHER]), 1);
    }
}

TEST(one_hop_ends_the_sums_and_none_is_rounded_again)
{
    const zi_flat flat = {.kept = {{.dtype = ZERO_DTYPE_F32}, {.dtype = ZERO_DTYPE_F32}},
                          .slot = {{.dtype = ZERO_DTYPE_F32}, {.dtype = ZERO_DTYPE_F32}},
                          .wire = {{.dtype = ZERO_DTYPE_F32}, {.dtype = ZERO_DTYPE_F16}},
                          .wire_sum = {.dtype = ZERO_DTYPE_F16},
                          .wire_updated = {.dtype = ZERO_DTYPE_F32}};
    for (size_t i = 0; i < DEGREES; i++) {
        zi_hop hops[ZI_HOPS];
        uint32_t ended = 0;
        uint32_t rounded = 0;
        zi_route_make(&degrees[i], hops);
        for (int k = 0; k < ZI_HOPS; k++) {
            const bool crosses = zi_hop_crosses(&hops[k]);
            const zi_hop_kind kind = (zi_hop_kind)k;
            ended += hops[k].sums && hops[k].ends && (crosses || kind == ZI_HOP_SCATTER);
            rounded += crosses && !zi_codec_same(zi_hop_source(&flat, kind),
                                                 zi_hop_wire(&flat, &hops[k], kind, true));
        }
        CHECK_EQ(ended, 1);
        CHECK_EQ(rounded, degrees[i].world > 1);
    }
}
