/* Owns the tests of by what an engine deals its stores over directories. The linker hands
 * zi_rate_choose and zi_store_create to the wrappers below (--wrap): the first gives the rates that
 * a test wants found (tests/storage/test_rate.c has what is really measured), the second keeps what
 * a store was made by. */
#include "storage/storage_rig.h"

#include "core/error.h"
#include "reads.h"
#include "storage/rate.h"
#include "toy.h"
#include "zero/evict.h"
#include "zero/path.h"

/* The outcome that choosing rates is to have, and the record of what was asked. */
typedef enum found { FOUND_NOTHING, FOUND_RATES, FOUND_FAULT } found;

static bool watched; /* in this file's tests */
static found to_find;
static struct {
    int choices;
    uint32_t rank;
    uint32_t directory_count;
    uint64_t bytes;
    int stores;
    const char *use;
    uint32_t rates[2]; /* of the last store */
    uint64_t store_bytes;
} seen;

zero_status __wrap_zi_rate_choose(const zi_rate_options *options, uint64_t store_bytes,
                                  zi_rates *rates);
zero_status __real_zi_rate_choose(const zi_rate_options *options, uint64_t store_bytes,
                                  zi_rates *rates);
zero_status __real_zi_store_create(const zi_store_options *options, zi_store **store);
zero_status __wrap_zi_store_create(const zi_store_options *options, zi_store **store);

zero_status __wrap_zi_rate_choose(const zi_rate_options *options, uint64_t store_bytes,
                                  zi_rates *rates)
{
    if (!watched) {
        return __real_zi_rate_choose(options, store_bytes, rates);
    }
    if (to_find == FOUND_FAULT) {
        ZI_FAIL(ZERO_ERR_IO, "the disk of %s is worn out", options->directories[1]);
    }
    seen.choices++;
    seen.rank = options->rank;
    seen.directory_count = options->directory_count;
    seen.bytes = store_bytes;
    *rates = (zi_rates){.measured = to_find == FOUND_RATES, .rate = {1, 1}};
    if (rates->measured) {
        rates->rate[0] = 2870;
        rates->rate[1] = 1410;
    }
    return ZERO_OK;
}

zero_status __wrap_zi_store_create(const zi_store_options *options, zi_store **store)
{
    if (!watched) {
        return __real_zi_store_create(options, store);
    }
    seen.stores++;
    seen.use = options->use;
    seen.store_bytes = options->bytes;
    CHECK_EQ(options->directory_count, 2);
    memcpy(seen.rates, options->rates, sizeof seen.rates);
    return __real_zi_store_create(options, store);
}

static toy_run open_run(bool on_disk, found what)
{
    rig_folders(2, 0);
    to_find = what;
    watched = true;
    toy_run run = toy_run_equal(2, 5000, ZERO_DTYPE_BF16);
    toy_run_tiers(&run, ZERO_ROLE_MASTER, on_disk ? ZERO_TIER_DISK : ZERO_TIER_DEVICE);
    toy_run_disk(&run, rig_paths, 2);
    run.tuning.extent_bytes = 8192;
    return run;
}

/* Opens an engine, takes a step; how the disk is striped. */
static zero_disk_path train(const toy_run *run, bool evict)
{
    toy_trainer trainer;
    CHECK_OK(toy_open(&trainer, run, NULL));
    const zero_disk_path path = engine_disk_path(trainer.engine);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(toy_step(&trainer));
        if (evict) {
            CHECK_OK(zero_engine_evict(trainer.engine, ZERO_EVICT_STATE, ZERO_TIER_DISK));
            CHECK_OK(zero_engine_restore(trainer.engine));
        }
    }
    toy_close(&trainer);
    return path;
}

static void check_text(const char *text, const char *expected)
{
    if (strcmp(text, expected) != 0) {
        TEST_FAIL("\"%s\" instead of \"%s\"", text, expected);
    }
}

TEST(roles_on_disk_are_striped_as_measured)
{
    const toy_run run = open_run(true, FOUND_RATES);
    const zero_disk_path path = train(&run, false);
    CHECK_EQ(seen.choices, 1);
    CHECK_EQ(seen.directory_count, 2);
    CHECK_EQ(seen.bytes, seen.store_bytes);
    CHECK_EQ(seen.rates[0], 2870);
    CHECK_EQ(seen.rates[1], 1410);
    check_text(path.striped, "by measured MB/s 2870:1410");
}

TEST(what_was_not_measured_is_striped_equally)
{
    const toy_run run = open_run(true, FOUND_NOTHING);
    const zero_disk_path path = train(&run, false);
    CHECK_EQ(seen.choices, 1);
    CHECK_EQ(seen.rates[0], 1);
    CHECK_EQ(seen.rates[1], 1);
    check_text(path.striped, "equally");
}

TEST(weights_that_are_given_are_not_measured)
{
    static const uint32_t weights[] = {3, 7};
    toy_run run = open_run(true, FOUND_RATES);
    run.tuning.disk_weights = weights;
    const zero_disk_path path = train(&run, false);
    CHECK_EQ(seen.choices, 0);
    CHECK_EQ(seen.rates[0], 3);
    CHECK_EQ(seen.rates[1], 7);
    check_text(path.striped, "by disk_weights 3:7");
}

TEST(weights_that_are_given_are_those_of_what_is_evicted)
{
    static const uint32_t weights[] = {3, 7};
    toy_run run = open_run(false, FOUND_RATES);
    run.tuning.disk_weights = weights;
    (void)train(&run, true);
    CHECK_EQ(seen.choices, 0);
    check_text(seen.use, "-evict");
    CHECK_EQ(seen.rates[0], 3);
    CHECK_EQ(seen.rates[1], 7);
}

/* An engine with nothing on disk has no store to be worth a measurement until it evicts; the second
 * time the first one's rates are taken. */
TEST(what_is_evicted_is_striped_as_measured)
{
    const toy_run run = open_run(false, FOUND_RATES);
    const zero_disk_path path = train(&run, true);
    CHECK_EQ(seen.stores, 2);
    CHECK_EQ(seen.choices, 1);
    check_text(seen.use, "-evict");
    CHECK_EQ(seen.bytes, seen.store_bytes);
    CHECK_EQ(seen.rates[0], 2870);
    check_text(path.striped, "");
}

static zero_status open_one(zero_world *world, void *user)
{
    toy_trainer trainer;
    return toy_open(&trainer, user, world);
}

TEST(a_measurement_that_fails_is_what_create_says)
{
    toy_run run = open_run(true, FOUND_FAULT);
    CHECK_FAILS(zero_world_run(2, TOY_DEADLINE_MS, open_one, &run), ZERO_ERR_IO, "is worn out");
    CHECK_EQ(seen.stores, 0);
}
