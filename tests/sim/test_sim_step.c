/* Owns the tests of simulated steps whose times, bytes and waits follow from a formula. */
#include "sim_rig.h"

#define KIB ((uint64_t)1024)

/* Elements of a unit in these tests, and the nanoseconds of its bytes over a link. */
#define ELEMENTS (64 * KIB)
#define UNIT_NS (ELEMENTS * sizeof(float))

static uint64_t waits_of(const zero_sim_report *r)
{
    uint64_t sum = 0;
    for (int i = 0; i < ZERO_SIM_CAUSE_COUNT; i++) {
        sum += r->wait_ns[i];
    }
    return sum;
}

/* ---- one rank ---- */

TEST(a_rank_alone_computes_and_updates)
{
    sim_rig rig;
    rig_open(&rig, 1, 1, 1, ELEMENTS, 1000);
    rig.cluster.device_bytes_per_s = RIG_RATE;
    const zero_sim_report *r = rig_run(&rig);
    CHECK_EQ(r->compute_ns, 2000);
    CHECK_EQ(r->step_ns, r->compute_ns + waits_of(r));
    /* Gradient read; parameter and two moments read and written. */
    CHECK_EQ(r->wait_ns[ZERO_SIM_UPDATE], 7 * UNIT_NS);
    CHECK_EQ(r->link_bytes[ZERO_SIM_LOCAL], 0);
    CHECK_EQ(r->link_bytes[ZERO_SIM_FABRIC], 0);
    CHECK_EQ(r->link_bytes[ZERO_SIM_DISK_READ], 0);
    rig_close(&rig);
}

/* The CPU's own engine has threads for streams, and no other memory. */
TEST(a_rank_on_the_cpu_does_the_same_in_host_memory)
{
    sim_rig rig;
    rig_open(&rig, 1, 1, 1, ELEMENTS, 1000);
    rig.options.device = ZERO_DEVICE_CPU;
    rig.cluster.host_bytes_per_s = RIG_RATE;
    const zero_sim_report *r = rig_run(&rig);
    CHECK_EQ(r->compute_ns, 2000);
    CHECK_EQ(r->wait_ns[ZERO_SIM_UPDATE], 7 * UNIT_NS);
    CHECK_EQ(r->link_bytes[ZERO_SIM_DEVICE_MEMORY], 0);
    CHECK_EQ(r->link_bytes[ZERO_SIM_HOST_TO_DEVICE], 0);
    rig_close(&rig);
}

/* State in host memory comes to the GPU and goes back by copies, over the host link. */
TEST(an_update_of_offloaded_state_goes_over_the_host_link)
{
    sim_rig rig;
    rig_open(&rig, 1, 1, 4, ELEMENTS, 1000);
    rig_tiers(&rig, ZERO_ROLE_MASTER, ZERO_TIER_HOST);
    rig.cluster.host_link_bytes_per_s = RIG_RATE;
    rig.tuning.extent_bytes = 16 * KIB;
    const zero_sim_report *r = rig_run(&rig);
    const uint64_t moments = 4 * 2 * UNIT_NS;
    const uint64_t little = 64 * KIB; /* the step's input and outcome */
    CHECK(r->link_bytes[ZERO_SIM_HOST_TO_DEVICE] >= moments &&
          r->link_bytes[ZERO_SIM_HOST_TO_DEVICE] < moments + little);
    CHECK(r->link_bytes[ZERO_SIM_DEVICE_TO_HOST] >= moments &&
          r->link_bytes[ZERO_SIM_DEVICE_TO_HOST] < moments + little);
    /* Both directions at once, and a chunk at the end; the last three units come behind the forward
     * of others. */
    CHECK(r->wait_ns[ZERO_SIM_COPY] >= moments - 3 * 1000 &&
          r->wait_ns[ZERO_SIM_COPY] < moments + rig.tuning.extent_bytes + little);
    CHECK_EQ(r->wait_ns[ZERO_SIM_UPDATE], 0);
    rig_close(&rig);
}

/* ---- gathers ---- */

/* Of a unit between two ranks of a node. */
#define GATHER_NS (UNIT_NS / 2)

/* Three units stay in their three slots until the update, so each is gathered once a step. */
static const zero_sim_report *gather_three(sim_rig *rig, uint64_t forward_ns, zero_device device,
                                           bool prefetch)
{
    rig_open(rig, 1, 2, 3, ELEMENTS, forward_ns);
    rig->options.device = device;
    rig->tuning.no_prefetch = !prefetch;
    for (int u = 0; u < 3; u++) {
        rig->backward_ns[u] = 10 * UNIT_NS; /* reductions hide behind it */
    }
    return rig_run(rig);
}

/* The first gather waits for the update; the others are exactly as long as a forward. */
static void check_hidden(zero_device device)
{
    sim_rig rig;
    const zero_sim_report *r = gather_three(&rig, GATHER_NS, device, true);
    CHECK_EQ(r->wait_ns[ZERO_SIM_GATHER], GATHER_NS);
    rig_close(&rig);
}

TEST_CALL(a_gather_that_is_prefetched_hides_behind_compute, check_hidden(ZERO_DEVICE_CUDA));
TEST_CALL(a_gather_that_is_prefetched_hides_on_the_cpu, check_hidden(ZERO_DEVICE_CPU));

TEST(a_gather_longer_than_compute_shows_by_the_difference)
{
    sim_rig rig;
    const zero_sim_report *r = gather_three(&rig, GATHER_NS - 1000, ZERO_DEVICE_CUDA, true);
    CHECK_EQ(r->wait_ns[ZERO_SIM_GATHER], GATHER_NS + 2 * 1000);
    rig_close(&rig);
}

/* On a CPU the caller's thread computes, so it asks for a unit only when it needs it. A GPU's is
 * ahead of the GPU: gathers hide also without prefetch. */
TEST(without_prefetch_every_gather_shows_on_the_cpu)
{
    sim_rig rig;
    const zero_sim_report *r = gather_three(&rig, GATHER_NS, ZERO_DEVICE_CPU, false);
    CHECK_EQ(r->wait_ns[ZERO_SIM_GATHER], 3 * GATHER_NS);
    rig_close(&rig);
    r = gather_three(&rig, GATHER_NS, ZERO_DEVICE_CUDA, false);
    CHECK_EQ(r->wait_ns[ZERO_SIM_GATHER], GATHER_NS);
    rig_close(&rig);
}

TEST(latency_is_added_to_a_gather_and_takes_no_link)
{
    sim_rig rig;
    const zero_sim_report before = *gather_three(&rig, GATHER_NS, ZERO_DEVICE_CPU, false);
    rig.cluster.local_latency_ns = 5000;
    const zero_sim_report *r = rig_run(&rig);
    CHECK_EQ(r->wait_ns[ZERO_SIM_GATHER], 3 * (GATHER_NS + 5000));
    CHECK_EQ(r->link_busy_ns[ZERO_SIM_LOCAL], before.link_busy_ns[ZERO_SIM_LOCAL]);
    rig_close(&rig);
}

/* ---- what is shared ---- */

/* The link between ranks is never idle where nothing computes and memory takes no time: gathers of
 * backward and reductions take turns on it. */
TEST(gathers_and_reductions_share_their_link)
{
    sim_rig rig;
    rig_open(&rig, 1, 2, 8, ELEMENTS, 0);
    const zero_sim_report *r = rig_run(&rig);
    CHECK_EQ(r->step_ns, r->link_busy_ns[ZERO_SIM_LOCAL]);
    rig_close(&rig);
}

TEST(ranks_of_a_node_share_its_fabric_and_disks)
{
    sim_rig rig;
    rig_open(&rig, 2, 4, 3, ELEMENTS, 10 * UNIT_NS);
    rig_tiers(&rig, ZERO_ROLE_MASTER, ZERO_TIER_DISK);
    rig.tuning.extent_bytes = 4 * KIB; /* more than are in memory at once */
    const zero_sim_report whole = *rig_run(&rig);
    rig.cluster.fabric_permille = 500;
    rig.cluster.disk_read_bytes_per_s /= 2;
    const zero_sim_report *r = rig_run(&rig);
    CHECK(whole.link_bytes[ZERO_SIM_DISK_READ] != 0);
    CHECK_EQ(whole.link_busy_ns[ZERO_SIM_FABRIC], whole.link_bytes[ZERO_SIM_FABRIC]);
    CHECK_EQ(whole.link_busy_ns[ZERO_SIM_DISK_READ], whole.link_bytes[ZERO_SIM_DISK_READ]);
    CHECK_EQ(r->link_bytes[ZERO_SIM_FABRIC], whole.link_bytes[ZERO_SIM_FABRIC]);
    CHECK_EQ(r->link_busy_ns[ZERO_SIM_FABRIC], 2 * whole.link_busy_ns[ZERO_SIM_FABRIC]);
    CHECK_EQ(r->link_busy_ns[ZERO_SIM_DISK_READ], 2 * whole.link_busy_ns[ZERO_SIM_DISK_READ]);
    rig_close(&rig);
}

/* ---- traffic ---- */

/* Units are of whole pages for every split here, so nothing is padded. */
#define UNITS 8

/* Bytes over all links between ranks, in units of a unit's bytes x (n-1)/n. Gradients are reduced
 * in F32. */
static void check_traffic(zero_stage stage, uint64_t nodes, uint64_t ranks_per_node,
                          uint64_t expected_units)
{
    sim_rig rig;
    rig_open(&rig, nodes, ranks_per_node, UNITS, ELEMENTS, 10 * UNIT_NS);
    rig.options.stage = stage;
    const zero_sim_report *r = rig_run(&rig);
    const uint64_t n = nodes * ranks_per_node;
    const uint64_t expected = expected_units * UNIT_NS / n * (n - 1);
    const uint64_t local = r->link_bytes[ZERO_SIM_LOCAL];
    const uint64_t fabric = r->link_bytes[ZERO_SIM_FABRIC];
    const uint64_t messages = n * KIB; /* the step's decision */
    if (local + fabric < expected || local + fabric > expected + messages) {
        TEST_FAIL("stage %d, %" PRIu64 " ranks: %" PRIu64 " bytes, not %" PRIu64, (int)stage, n,
                  local + fabric, expected);
    }
    /* The ranks of a node take what comes from other nodes once. */
    CHECK(fabric >= expected / (n - 1) * (nodes - 1));
    CHECK(fabric <= expected / (n - 1) * (nodes - 1) + messages);
    rig_close(&rig);
}

TEST(traffic_is_that_of_the_stages)
{
    static const uint64_t shapes[][2] = {{1, 2}, {1, 4}, {4, 1}, {2, 4}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        check_traffic(ZERO_STAGE_0, shapes[i][0], shapes[i][1], 2 * UNITS);
        check_traffic(ZERO_STAGE_1, shapes[i][0], shapes[i][1], 2 * UNITS);
        check_traffic(ZERO_STAGE_2, shapes[i][0], shapes[i][1], 2 * UNITS);
        /* Of two gathers a unit, three are still in their slots when backward begins. */
        check_traffic(ZERO_STAGE_3, shapes[i][0], shapes[i][1], 3 * UNITS - 3);
    }
}

/* Two nodes of four: four parts go to the other node instead of one sum of a part. */
TEST(sums_all_at_once_send_every_part_over_the_fabric)
{
    sim_rig rig;
    rig_open(&rig, 2, 4, UNITS, ELEMENTS, 10 * UNIT_NS);
    rig.options.stage = ZERO_STAGE_2;
    const zero_sim_report levels = *rig_run(&rig);
    rig.tuning.reduction = ZERO_REDUCTION_EXACT;
    const zero_sim_report *r = rig_run(&rig);
    const uint64_t more = 3 * UNITS * UNIT_NS / 8;
    CHECK_EQ(r->link_bytes[ZERO_SIM_FABRIC], levels.link_bytes[ZERO_SIM_FABRIC] + more);
    CHECK_EQ(r->link_bytes[ZERO_SIM_LOCAL], levels.link_bytes[ZERO_SIM_LOCAL] - more);
    rig_close(&rig);
}

/* Each rank sends the other node its part of the sums, 256 elements of which are `bytes` long. */
static void check_packed(uint64_t ranks_per_node, zero_dtype dtype, uint64_t bytes)
{
    sim_rig rig;
    rig_open(&rig, 2, ranks_per_node, UNITS, ELEMENTS, 10 * UNIT_NS);
    rig.options.stage = ZERO_STAGE_2;
    const zero_sim_report whole = *rig_run(&rig);
    rig.tuning.host_wire_dtype = dtype;
    const zero_sim_report *r = rig_run(&rig);
    const uint64_t granules = UNITS * ELEMENTS / (2 * ranks_per_node) / 256;
    CHECK_EQ(whole.link_bytes[ZERO_SIM_FABRIC] - r->link_bytes[ZERO_SIM_FABRIC],
             granules * (256 * sizeof(float) - bytes));
    CHECK_EQ(whole.link_bytes[ZERO_SIM_LOCAL], r->link_bytes[ZERO_SIM_LOCAL]);
    rig_close(&rig);
}

TEST(packed_sums_of_nodes_take_less_of_the_fabric)
{
    check_packed(4, ZERO_DTYPE_INT4_BLOCK, 132);
    check_packed(4, ZERO_DTYPE_INT8_BLOCK, 260);
    check_packed(1, ZERO_DTYPE_INT8_BLOCK, 260);
}

/* Hybrid sharding: gathers stay in the node, and what crosses the fabric is a node's part of the
 * gradients. */
TEST(a_shard_group_of_a_node_gathers_within_it)
{
    sim_rig rig;
    rig_open(&rig, 2, 4, UNITS, ELEMENTS, 10 * UNIT_NS);
    rig.options.shard_group = 4;
    const zero_sim_report *r = rig_run(&rig);
    const uint64_t replicas = UNITS * UNIT_NS / 4; /* an all-reduce of two: 2 x 1/2 */
    const uint64_t local = (3 * UNITS - 3) * UNIT_NS / 4 * 3;
    CHECK(r->link_bytes[ZERO_SIM_FABRIC] >= replicas);
    CHECK(r->link_bytes[ZERO_SIM_FABRIC] < replicas + 8 * KIB);
    CHECK(r->link_bytes[ZERO_SIM_LOCAL] >= local);
    CHECK(r->link_bytes[ZERO_SIM_LOCAL] < local + 8 * KIB);
    rig_close(&rig);
}

/* ---- memory ---- */

static void check_bytes(zero_stage stage, zero_role first, zero_tier tier)
{
    sim_rig rig;
    rig_open(&rig, 1, 4, UNITS, ELEMENTS, 1000);
    rig.options.stage = stage;
    rig_tiers(&rig, first, tier);
    const zero_sim_report *r = rig_run(&rig);
    const uint64_t host = r->planned_bytes[ZERO_TIER_HOST];
    CHECK_EQ(r->peak_bytes[ZERO_TIER_DEVICE], r->planned_bytes[ZERO_TIER_DEVICE]);
    CHECK_EQ(r->peak_bytes[ZERO_TIER_DISK], r->planned_bytes[ZERO_TIER_DISK]);
    /* Outcomes of steps are in host memory that no plan counts. */
    CHECK(r->peak_bytes[ZERO_TIER_HOST] > host);
    CHECK(r->peak_bytes[ZERO_TIER_HOST] < host + 512 * KIB);
    rig_close(&rig);
}

TEST(bytes_are_those_of_the_plan)
{
    for (int stage = ZERO_STAGE_0; stage <= ZERO_STAGE_3; stage++) {
        for (int tier = ZERO_TIER_DEVICE; tier <= ZERO_TIER_DISK; tier++) {
            for (int first = ZERO_ROLE_PARAM; first <= ZERO_ROLE_MASTER; first++) {
                check_bytes((zero_stage)stage, (zero_role)first, (zero_tier)tier);
            }
        }
    }
}

/* Memory that collectives know is counted like any other. */
TEST(registered_memory_is_that_of_the_plan)
{
    sim_rig rig;
    rig_open(&rig, 1, 4, UNITS, ELEMENTS, 1000);
    rig.tuning.nccl_memory = ZERO_NCCL_MEMORY_REGISTERED;
    const zero_sim_report *r = rig_run(&rig);
    CHECK_EQ(r->peak_bytes[ZERO_TIER_DEVICE], r->planned_bytes[ZERO_TIER_DEVICE]);
    CHECK(r->peak_bytes[ZERO_TIER_DEVICE] > 0);
    rig_close(&rig);
}

/* ---- jitter ---- */

TEST(jitter_is_the_same_for_the_same_seed)
{
    sim_rig rig;
    uint64_t ns[3];
    static const uint64_t seeds[] = {1, 1, 2};
    rig_open(&rig, 1, 4, UNITS, ELEMENTS, 1000);
    const uint64_t even = rig_run(&rig)->step_ns;
    CHECK_EQ(rig.report.wait_ns[ZERO_SIM_RANKS], 0);
    for (int i = 0; i < 3; i++) {
        zi_sim *sim = NULL;
        CHECK_OK(zi_sim_create(&rig.cluster, false, &sim));
        sim->machine.jitter_ns = 50000;
        sim->machine.seed = seeds[i];
        CHECK_OK(zi_sim_train(sim, &rig.job, &rig.report));
        zi_sim_destroy(sim);
        ns[i] = rig.report.step_ns;
        CHECK(rig.report.wait_ns[ZERO_SIM_RANKS] > 0);
        CHECK(ns[i] > even);
    }
    CHECK_EQ(ns[0], ns[1]);
    CHECK(ns[0] != ns[2]);
    rig_close(&rig);
}
