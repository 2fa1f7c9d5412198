/** @file
 *  zero/world.h in C++: the ranks that train together.
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). Part of zero/zero.hpp. */
#ifndef ZERO_WORLD_HPP
#define ZERO_WORLD_HPP

#include "zero/callback.hpp"
#include "zero/result.hpp"
#include "zero/world.h"
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace zero
{
inline namespace ZERO_CPP_MODE
{

/** One rank's membership. Moved, never copied; null after a move. Destroy its engines first. Where
 *  an exception ends its scope the other ranks are told (zero_world_abort) before it is left. */
class World
{
  public:
    /** Null. */
    World() = default;
    /** Own what a C function made, for example zero_world_create_mpi or zero_world_create_nccl. */
    explicit World(zero_world *owned) noexcept : handle_(owned, owned != nullptr)
    {
    }
    /** The other is null afterwards. */
    World(World &&other) noexcept = default;
    /** The world that was held before is left. */
    World &operator=(World &&other) noexcept = default;
    ~World()
    {
        if (handle_.owned() && scope_.unwinding()) {
            abort();
        }
    }

    /** A world of one rank: zero_world_create_self. */
    [[nodiscard]] static Outcome<World> self()
    {
        zero_world *made = nullptr;
        return detail::give(zero_world_create_self(&made), [&] { return World(made); });
    }

    /** The world that mpirun, srun or torchrun described: zero_world_create_launched. */
    [[nodiscard]] static Outcome<World> launched(std::uint32_t deadline_ms = 0)
    {
        zero_world *made = nullptr;
        return detail::give(zero_world_create_launched(deadline_ms, &made),
                            [&] { return World(made); });
    }

    /** Run `fn(world)` on threads of this process, a rank each, and wait for all: zero_world_run.
     *  - fn: called on all threads at once with a World & that is valid during the call. It gives
     *    back nothing, a zero_status or a Result<void>, and may throw.
     *  - Errors: the first failure that a rank found itself, whose message names the rank. An
     *    exception that is no zero::Error is thrown again as it was; where failures are returned
     *    it is STATE with its text. */
    template <class Fn>
    static Outcome<void> run(std::uint32_t rank_count, Fn fn, std::uint32_t deadline_ms = 0)
    {
        struct Job {
            Fn &fn;
            detail::Caught caught;
        } job{fn, {}};
        const zero_status status = zero_world_run(
            rank_count, deadline_ms,
            [](zero_world *borrowed, void *user) {
                Job &mine = *static_cast<Job *>(user);
                return run_rank(borrowed, mine.fn, mine.caught);
            },
            &job);
        if (job.caught.any()) {
            return job.caught.template fail<void>();
        }
        return detail::done(status);
    }

    /** The handle for functions of C, for example of zero/trace.h; NULL after a move. */
    [[nodiscard]] zero_world *get() const noexcept
    {
        return handle_.get();
    }
    /** False after a move. */
    [[nodiscard]] explicit operator bool() const noexcept
    {
        return get() != nullptr;
    }
    /** This rank, 0-based. */
    [[nodiscard]] std::uint32_t rank() const noexcept
    {
        return zero_world_rank(get());
    }
    /** Number of ranks. */
    [[nodiscard]] std::uint32_t size() const noexcept
    {
        return zero_world_size(get());
    }
    /** Number of ranks on this host. */
    [[nodiscard]] std::uint32_t local_size() const noexcept
    {
        return zero_world_local_size(get());
    }
    /** CPUs for this rank's threads. */
    [[nodiscard]] std::uint32_t cpus() const noexcept
    {
        return zero_world_cpus(get());
    }
    /** "self", "local", "shm", "mpi", "nccl". */
    [[nodiscard]] const char *backend() const noexcept
    {
        return zero_world_backend(get());
    }

    /** Wait for all ranks: zero_world_barrier. */
    Outcome<void> barrier()
    {
        return detail::done(zero_world_barrier(get()));
    }

    /** The values of all ranks, in rank order: zero_world_gather. */
    template <class T> [[nodiscard]] Outcome<std::vector<T>> gather(const T &mine)
    {
        static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>,
                      "ranks exchange bytes: gather numbers and structs of numbers");
        static_assert(!std::is_same_v<T, bool>, "gather an int in place of a bool");
        std::vector<T> all(size());
        const zero_status status = zero_world_gather(get(), &mine, all.data(), sizeof mine);
        return detail::give(status, [&] { return std::move(all); });
    }

    /** The mean over all ranks, the same bits on each: zero_world_mean. */
    [[nodiscard]] Outcome<double> mean(double value)
    {
        double mean = 0;
        const zero_status status = zero_world_mean(get(), value, &mean);
        return detail::give(status, [&] { return mean; });
    }

    /** Tell the other ranks that this one cannot go on: zero_world_abort. */
    void abort() noexcept
    {
        zero_world_abort(get());
    }

  private:
    using Owner = detail::Handle<zero_world, zero_world_destroy>;
    explicit World(Owner handle) noexcept : handle_(std::move(handle))
    {
    }

    /* Failures that follow from another rank's are the library's matter, which knows that one's. */
    static zero_status keep_own(const Error &error, zero_world *world, detail::Caught &caught)
    {
        const zero_status status = error.status();
        if (error.of_other() == 0 && status != ZERO_ERR_COMM && status != ZERO_ERR_TIMEOUT &&
            status != ZERO_ERR_POISONED) {
            caught.keep(error.with_prefix("rank " + std::to_string(zero_world_rank(world)) + ": "));
        }
        return status != ZERO_OK ? status : ZERO_ERR_STATE;
    }

    template <class Fn>
    static zero_status run_rank(zero_world *borrowed, Fn &fn, detail::Caught &caught) noexcept
    {
        zero_status status = ZERO_ERR_STATE; /* of an exception that is no Error */
        detail::run_caught(
            caught,
            [&] {
                World here(Owner(borrowed, false));
                using Given = decltype(fn(here));
                if constexpr (std::is_void_v<Given>) {
                    fn(here);
                    status = ZERO_OK;
                } else if constexpr (std::is_same_v<Given, Result<void>>) {
                    const Result<void> given = fn(here);
                    status = given.ok() ? ZERO_OK : keep_own(given.error(), borrowed, caught);
                } else {
                    static_assert(std::is_same_v<Given, zero_status>,
                                  "a rank's function gives back nothing, a zero_status or a "
                                  "zero::Result<void>");
                    status = fn(here);
                    if (status != ZERO_OK) {
                        status = keep_own(Error::last(status), borrowed, caught);
                    }
                }
            },
            [&](const Error &error) { status = keep_own(error, borrowed, caught); });
        return status;
    }

    Owner handle_;
    detail::Scope scope_;
};

} // namespace ZERO_CPP_MODE
} // namespace zero

#endif
