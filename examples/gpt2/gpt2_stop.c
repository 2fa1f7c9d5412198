/* Owns the process's signal handlers, which only note the signal. */
#include "gpt2_stop.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

static atomic_int asked;
static atomic_int interrupts;
static bool prints; /* standard error is a terminal; set before there are handlers */

static void on_signal(int number)
{
    static const char text[] = "\nstopping after this step; SIGINT once more ends it at once\n";
    int none = 0;
    const bool first = atomic_compare_exchange_strong(&asked, &none, number);
    if (number == SIGINT && atomic_fetch_add(&interrupts, 1) > 0) {
        (void)signal(SIGINT, SIG_DFL);
        (void)raise(SIGINT);
    }
    if (first && prints && write(STDERR_FILENO, text, sizeof text - 1) < 0) {
        prints = false;
    }
}

void gpt2_stop_install(void)
{
    static const int stopping[] = {SIGINT, SIGTERM};
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)signal(SIGPIPE, SIG_IGN);
    prints = isatty(STDERR_FILENO) == 1;
    for (size_t i = 0; i < sizeof stopping / sizeof stopping[0]; i++) {
        struct sigaction action;
        if (sigaction(stopping[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN) {
            memset(&action, 0, sizeof action);
            action.sa_handler = on_signal;
            action.sa_flags = SA_RESTART;
            (void)sigemptyset(&action.sa_mask);
            (void)sigaction(stopping[i], &action, NULL);
        }
    }
}

int gpt2_stop_asked(void)
{
    return atomic_load(&asked);
}
