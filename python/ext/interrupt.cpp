/* Ctrl-C while a call waits without the GIL. Python handles signals on its main thread between
 * instructions, and a thread that waits in the library gets to none. So a handler in front of
 * Python's wakes a watcher. If the main thread is in the same wait a moment later, and Python's own
 * handler is to raise KeyboardInterrupt, the watcher aborts the worlds that it waits in. The call
 * then fails, and its failure becomes the KeyboardInterrupt that is pending (check()). A handler of
 * the program's own is left to itself: it may want the step to end. */
#include "native.h"
#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <semaphore.h>
#include <thread>
#include <unistd.h>

/* Of the main thread's wait. Written with the GIL held, but for what a handler reads. */
static std::atomic<uint64_t> wait_now;     // its number; 0: none
static std::atomic<uint64_t> wait_stopped; // number of the one that the last SIGINT came in
static uint64_t wait_count;
static zero_world *wait_world;
static const Ranks *wait_ranks;

static struct sigaction previous;
static sem_t interrupts;
static std::atomic<bool> ending;

static bool on_main_thread()
{
    static thread_local const bool is_main = getpid() == gettid();
    return is_main;
}

/* Python's handler goes first: a wait that begins after the number is read sees its signal. */
static void on_interrupt(int number, siginfo_t *info, void *context)
{
    const int kept = errno;
    if ((previous.sa_flags & SA_SIGINFO) != 0) {
        previous.sa_sigaction(number, info, context);
    } else {
        previous.sa_handler(number);
    }
    wait_stopped = wait_now.load();
    (void)sem_post(&interrupts);
    errno = kept;
}

static bool raises_interrupt()
{
    try {
        nb::module_ module = nb::module_::import_("signal");
        return module.attr("getsignal")(SIGINT).is(module.attr("default_int_handler"));
    } catch (nb::python_error &) {
        return false;
    }
}

/* Ranks that wait fail, and ranks that compute are interrupted between instructions. */
static void stop_ranks(const Ranks &ranks)
{
    for (size_t i = 0; i < ranks.worlds.size(); i++) {
        if (ranks.worlds[i] != nullptr) {
            zero_world_abort(ranks.worlds[i]);
            (void)PyThreadState_SetAsyncExc(ranks.threads[i], PyExc_KeyboardInterrupt);
        }
    }
}

static void stop_wait(uint64_t number)
{
    nb::gil_scoped_acquire gil;
    if (wait_now != number || !raises_interrupt()) {
        return;
    }
    if (wait_ranks != nullptr) {
        stop_ranks(*wait_ranks);
    } else {
        zero_world_abort(wait_world);
    }
}

static void watch()
{
    const struct timespec moment = {0, 50000000};
    for (;;) {
        if (sem_wait(&interrupts) != 0) {
            continue;
        }
        (void)nanosleep(&moment, nullptr);
        const uint64_t number = wait_stopped;
        if (number != 0 && wait_now == number && !ending) {
            stop_wait(number);
        }
    }
}

void interrupts_watch()
{
    static bool started;
    struct sigaction current;
    if (sigaction(SIGINT, nullptr, &current) != 0 || current.sa_sigaction == on_interrupt ||
        current.sa_handler == SIG_DFL || current.sa_handler == SIG_IGN) {
        return;
    }
    if (!started) {
        started = true;
        (void)sem_init(&interrupts, 0, 0);
        std::thread(watch).detach();
    }
    previous = current;
    current.sa_sigaction = on_interrupt;
    current.sa_flags = (current.sa_flags & ~static_cast<int>(SA_RESETHAND)) | SA_SIGINFO;
    (void)sigaction(SIGINT, &current, nullptr);
}

void Wait::begin()
{
    wait_now = ++wait_count;
    if (PyErr_CheckSignals() != 0) {
        wait_now = 0;
        throw nb::python_error();
    }
}

Wait::Wait(zero_world *world) : main_(on_main_thread())
{
    if (main_) {
        wait_world = world;
        wait_ranks = nullptr;
        begin();
    }
    state_ = PyEval_SaveThread();
}

Wait::Wait(const Ranks *ranks) : main_(on_main_thread())
{
    if (main_) {
        wait_ranks = ranks;
        begin();
    }
    state_ = PyEval_SaveThread();
}

Wait::~Wait()
{
    PyEval_RestoreThread(state_);
    if (main_) {
        wait_now = 0;
    }
}

void interrupts_register(nb::module_ &module)
{
    module.def("interrupts_end", [] { ending = true; });
    nb::module_::import_("atexit").attr("register")(module.attr("interrupts_end"));
}
