/* Measurements of directories. The linker hands zi_io_create and zi_clock_ns to the wrappers below
 * (--wrap): every access goes through a backend that counts it, and time is what the accesses cost
 * by the test's price and nothing else, so rates come out to the last digit. */
#include "storage_rig.h"

#include "core/clock.h"
#include "core/fault.h"
#include "faulty_backend.h"
#include "storage/rate.h"

#define MS UINT64_C(1000000)
#define DISKS 3
#define PASSES 3
#define PIECE_MIB (ZI_IO_SEGMENT_BYTES / MIB)
#define PIECES (int)(4 / PIECE_MIB) /* in a pass: of 4 MiB */

/* A directory of the test, and the disk that it is made to be. */
typedef struct place {
    char *folder;
    uint64_t mib_ns; /* the time of a MiB */
    faulty below;
    int queues; /* made on it */
} place;

static place places[DISKS];
static const char *folders[DISKS];
static bool plain; /* queues are as the machine has them */

zero_status __real_zi_io_create(const zi_io_options *options, zi_io **out);
zero_status __wrap_zi_io_create(const zi_io_options *options, zi_io **out);
uint64_t __real_zi_clock_ns(void);
uint64_t __wrap_zi_clock_ns(void);

uint64_t __wrap_zi_clock_ns(void)
{
    uint64_t ns = 1;
    for (int i = 0; i < DISKS; i++) {
        ns += places[i].mib_ns * PIECE_MIB * (uint64_t)places[i].below.segments;
    }
    return ns;
}

zero_status __wrap_zi_io_create(const zi_io_options *options, zi_io **out)
{
    if (plain) {
        return __real_zi_io_create(options, out);
    }
    zi_io_options with = *options;
    zi_io_backend backend;
    const char *path = zi_store_directory_of(options->store, 0)->path;
    for (int i = 0; i < DISKS; i++) {
        if (folders[i] != NULL && strcmp(folders[i], path) == 0) {
            places[i].queues++;
            faulty_open(&places[i].below, options->store, &backend);
            with.backend = &backend;
        }
    }
    CHECK(with.backend != NULL);
    return __real_zi_io_create(&with, out);
}

/* Nothing is left in them. */
static void remove_places(void)
{
    for (int i = 0; i < DISKS; i++) {
        rig_remove(places[i].folder);
    }
}

/* To the end of the test; the second one is on a disk of its own. */
static void make_places(uint64_t ns0, uint64_t ns1, uint64_t ns2)
{
    const uint64_t ns[DISKS] = {ns0, ns1, ns2};
    for (int i = 0; i < DISKS; i++) {
        places[i] = (place){.folder = rig_folder(i == 1), .mib_ns = ns[i]};
        places[i].below.hold_file = -1;
        places[i].below.nth = -1;
        folders[i] = places[i].folder;
    }
    struct stat here;
    struct stat memory;
    CHECK(stat(folders[0], &here) == 0 && stat(folders[1], &memory) == 0);
    if (here.st_dev == memory.st_dev) {
        remove_places();
        SKIP("the build is on the file system of /dev/shm; there is no second one");
    }
    CHECK_EQ(atexit(remove_places), 0);
}

static zi_rate_options rate_options(uint32_t count)
{
    return (zi_rate_options){
        .directories = folders, .directory_count = count, .bytes = 4 * MIB, .pass_ns = 1000 * MS};
}

TEST(unequal_disks_are_found_unequal)
{
    zi_rates rates;
    make_places(4 * MS, MS, 0);
    const zi_rate_options options = rate_options(2);
    CHECK_OK(zi_rate_measure(&options, &rates));
    CHECK(rates.measured);
    /* A MiB in 4 ms and in 1 ms, rounded up to a MB/s. */
    CHECK_EQ(rates.rate[0], 263);
    CHECK_EQ(rates.rate[1], 1049);
    CHECK_EQ(places[0].below.segments, PIECES * PASSES);
    CHECK_EQ(places[1].below.segments, PIECES * PASSES);
    zi_stripe_map map;
    CHECK_OK(zi_stripe_init(&map, 320 * MIB, MIB, rates.rate, 2));
    CHECK_EQ(zi_stripe_file_bytes(&map, 0), 64 * MIB);
}

/* One is measured for both, as in use they would share it. */
TEST(directories_of_one_disk_share_its_rate)
{
    zi_rates rates;
    make_places(4 * MS, MS, 4 * MS);
    const zi_rate_options options = rate_options(3);
    CHECK_OK(zi_rate_measure(&options, &rates));
    CHECK_EQ(places[0].queues, 1);
    CHECK_EQ(places[2].queues, 0);
    CHECK_EQ(rates.rate[0], 131);
    CHECK_EQ(rates.rate[2], 131);
    CHECK_EQ(rates.rate[1], 1049);
    CHECK_EQ(rates.sharers[0], 2);
    CHECK_EQ(rates.sharers[1], 1);
    CHECK_EQ(rates.sharers[2], 2);
}

static void check_unmeasured(uint32_t count, uint64_t store_bytes)
{
    zi_rates rates;
    const zi_rate_options options = rate_options(count);
    CHECK_OK(zi_rate_choose(&options, store_bytes, &rates));
    CHECK(!rates.measured);
    for (uint32_t i = 0; i < ZI_STORE_DIRECTORIES_MAX; i++) {
        CHECK_EQ(rates.rate[i], 1);
    }
    CHECK_EQ(places[0].queues + places[1].queues + places[2].queues, 0);
}

TEST(measured_is_only_what_is_worth_it)
{
    zi_rates rates;
    make_places(4 * MS, MS, MS);
    check_unmeasured(2, ZI_RATE_STORE_BYTES - PAGE);
    check_unmeasured(1, 8 * ZI_RATE_STORE_BYTES);
    folders[1] = folders[2];
    check_unmeasured(2, 8 * ZI_RATE_STORE_BYTES);
    folders[1] = places[1].folder;
    const zi_rate_options options = rate_options(2);
    CHECK_OK(zi_rate_choose(&options, ZI_RATE_STORE_BYTES, &rates));
    CHECK(rates.measured);
    CHECK_EQ(rates.rate[1], 1049);
}

/* A disk that takes 8 ms for a MiB gets no further than one access in 10 ms. */
TEST(a_slow_disk_is_measured_no_longer_than_said)
{
    zi_rates rates;
    make_places(8 * MS, MS, 0);
    zi_rate_options options = rate_options(2);
    options.pass_ns = 10 * MS;
    CHECK_OK(zi_rate_measure(&options, &rates));
    CHECK_EQ(places[0].below.segments, PASSES);
    CHECK_EQ(rates.rate[0], 132);
    CHECK_EQ(rates.rate[1], 1049);
}

TEST(a_hopeless_disk_is_refused_with_both_rates)
{
    zi_rates rates;
    make_places(MS, 200 * MS, 0);
    zi_rate_options options = rate_options(2);
    options.pass_ns = 10000 * MS;
    const zero_status status = zi_rate_measure(&options, &rates);
    CHECK_FAILS(status, ZERO_ERR_INVALID_ARGUMENT,
                "directory 1 was measured at 6 MB/s, the fastest at 1049");
    CHECK(strstr(zero_last_error()->message, folders[1]) != NULL);
}

/* The first access of each pass, and the last of all, on either disk. */
TEST(a_failing_disk_is_named_and_nothing_stays)
{
    zi_rates rates;
    make_places(MS, MS, 0);
    const zi_rate_options options = rate_options(2);
    const unsigned descriptors = rig_descriptors();
    for (int i = 0; i < 8; i++) {
        static const int nths[] = {1, PIECES + 1, 2 * PIECES + 1, 3 * PIECES};
        place *struck = &places[i / 4];
        for (int disk = 0; disk < 2; disk++) {
            places[disk].below = (faulty){.nth = -1, .hold_file = -1};
        }
        struck->below.nth = nths[i % 4];
        struck->below.kind = FAULTY_ERRNO + EIO;
        CHECK_FAILS(zi_rate_measure(&options, &rates), ZERO_ERR_IO, struck->folder);
        CHECK_EQ(struck->below.faults, 1);
        CHECK_EQ(rig_entries(folders[0]) + rig_entries(folders[1]), 0);
        CHECK_EQ(rig_descriptors(), descriptors);
    }
    folders[1] = "./there/is/none";
    CHECK_FAILS(zi_rate_measure(&options, &rates), ZERO_ERR_IO, "./there/is/none");
}

TEST(no_memory_leaves_nothing)
{
    zi_rates rates;
    make_places(0, 0, 0);
    plain = true;
    const zi_rate_options options = rate_options(1);
    const unsigned descriptors = rig_descriptors();
    zero_status status = ZERO_ERR_OUT_OF_MEMORY;
    for (uint64_t nth = 1; status != ZERO_OK; nth++) {
        zi_fault_arm(ZI_FAULT_ALLOC, nth);
        status = zi_rate_measure(&options, &rates);
        CHECK(status == ZERO_OK || status == ZERO_ERR_OUT_OF_MEMORY);
        CHECK_EQ(rig_entries(folders[0]), 0);
        CHECK_EQ(rig_descriptors(), descriptors);
        CHECK(nth < 100);
    }
    zi_fault_arm(ZI_FAULT_ALLOC, 0);
}
