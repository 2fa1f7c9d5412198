/* Resolvers that take their time: who joins or serves goes on at its deadline. getaddrinfo is this
 * program's own, and stands still for some names. */
#include <dlfcn.h>
#include <netdb.h>

#include "control_rig.h"

#define LATE_MS 500  /* of the lookup of "late.test" */
#define GIVEN_MS 300 /* allowed for a lookup that is to be too late */

static _Atomic int released;   /* lookups of "never" end */
static _Atomic uint32_t begun; /* lookups that stood still */
static _Atomic uint32_t ended;

typedef int (*lookup_fn)(const char *host, const char *service, const struct addrinfo *hints,
                         struct addrinfo **found);

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                struct addrinfo **found)
{
    lookup_fn next = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "getaddrinfo");
    const bool never = strcmp(host, "never.test") == 0;
    const bool late = strcmp(host, "late.test") == 0;
    if (!never && !late) {
        return next(host, service, hints, found);
    }
    atomic_fetch_add(&begun, 1);
    for (uint32_t ms = 0; (late && ms < LATE_MS) || (never && atomic_load(&released) == 0); ms++) {
        sleep_ms(1);
    }
    const int code = next("127.0.0.1", service, hints, found);
    atomic_fetch_add(&ended, 1);
    return code;
}

static zero_status try_join(const zi_control_endpoint *endpoint, uint32_t join_ms, zi_control **out)
{
    zi_silence *silence = NULL;
    CHECK_OK(zi_silence_create(2, &silence));
    const zi_control_desc desc = {.endpoint = endpoint,
                                  .rank = 1,
                                  .size = 2,
                                  .deadline_ms = LONG_MS,
                                  .join_ms = join_ms,
                                  .silence = silence};
    const zero_status status = zi_control_join(&desc, out);
    zi_control_leave(*out);
    zi_silence_destroy(silence);
    return status;
}

/* The lookup is left alone. When it ends after all, it neither joins nor keeps anything. */
TEST(a_resolver_that_does_not_answer)
{
    zi_control *zero = NULL;
    zi_control *other = NULL;
    zi_control *rank = NULL;
    zi_control_endpoint endpoint = local_endpoint("127.0.0.1");
    CHECK_OK(zi_control_serve(&endpoint, 2, LONG_MS, &zero));
    zi_control_endpoint never = endpoint;
    snprintf(never.hosts, sizeof never.hosts, "never.test");
    uint64_t start_ns = zi_clock_ns();
    CHECK_FAILS(try_join(&never, GIVEN_MS, &rank), ZERO_ERR_TIMEOUT,
                "rank 1 did not learn the address of rank 0's host, 'never.test', within 300 ms");
    CHECK(rank == NULL);
    CHECK(elapsed_ms(start_ns) + 1 >= GIVEN_MS && in_time(start_ns, GIVEN_MS + SOON_MS));
    start_ns = zi_clock_ns();
    never.port = 0;
    CHECK_FAILS(zi_control_serve(&never, 2, GIVEN_MS, &other), ZERO_ERR_TIMEOUT,
                "set MASTER_ADDR to an address");
    CHECK(other == NULL);
    CHECK(elapsed_ms(start_ns) + 1 >= GIVEN_MS && in_time(start_ns, GIVEN_MS + SOON_MS));
    CHECK_EQ(atomic_load(&begun), 2);
    CHECK_EQ(atomic_load(&ended), 0);
    atomic_store(&released, 1);
    AWAIT(atomic_load(&ended) == 2);
    sleep_ms(300);
    CHECK_OK(zi_control_check(zero));
    CHECK_OK(try_join(&endpoint, LONG_MS, &rank)); /* or it would be there already */
    zi_control_leave(zero);
}

/* Slower than usual, but in time. */
TEST(a_resolver_that_answers_late)
{
    zi_control *zero = NULL;
    zi_control *rank = NULL;
    zi_control_endpoint endpoint = local_endpoint("late.test");
    CHECK_OK(zi_control_serve(&endpoint, 2, LONG_MS, &zero));
    CHECK_OK(try_join(&endpoint, LONG_MS, &rank));
    CHECK_EQ(atomic_load(&ended), 2);
    zi_control_leave(zero);
}

/* It answers when the deadline has passed, before it is given up: there is no try to join. */
TEST(a_resolver_that_answers_too_late)
{
    zi_control *zero = NULL;
    zi_control *rank = NULL;
    zi_control_endpoint endpoint = local_endpoint("127.0.0.1");
    CHECK_OK(zi_control_serve(&endpoint, 2, LONG_MS, &zero));
    zi_control_endpoint late = endpoint;
    snprintf(late.hosts, sizeof late.hosts, "late.test");
    CHECK_FAILS(try_join(&late, GIVEN_MS, &rank), ZERO_ERR_TIMEOUT,
                "its address was found too late");
    CHECK_OK(try_join(&endpoint, LONG_MS, &rank));
    zi_control_leave(zero);
}
