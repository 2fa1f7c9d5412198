/* Files of the deterministic machine: the system's, with times and faults that the seed and a test
 * decide. They are linked where the machine is not, too: what draws nothing works with threads of
 * the system as well.
 *
 * On the machine io_uring is refused, so that the library's disks are its POSIX threads, which are
 * fibers. Each read and write takes a drawn time, in which others have their turns, so accesses end
 * in any order.
 *
 * Power: from machine_power_watch on, what the program changes below a directory is noted until an
 * fsync has put it on the disk. When the power goes, every later change fails, and
 * machine_power_return puts the directory into one of the states in which a disk may be then. Of
 * the names that were made, moved and removed in a folder, those before the folder's last fsync are
 * there, and a drawn number of those that followed, in their order. Of what was written to a file
 * behind its last fsync or fdatasync, each page is there or is not. Nothing is promised that POSIX
 * does not promise: an fsync of a file puts no name on the disk. */
#ifndef TESTS_MACHINE_MACHINE_FILES_H
#define TESTS_MACHINE_MACHINE_FILES_H

#include <stdbool.h>
#include <stdint.h>

/* Faults of calls. Zeroed: none. They hold until the next machine_files_set. */
typedef struct machine_files {
    bool refuses_open;      /* with O_DIRECT */
    bool refuses_write;     /* to what was opened so */
    uint32_t short_percent; /* of accesses: a signal interrupts them, or they move a part */
    uint64_t flip_read; /* the nth that asks for 512 bytes or more brings a wrong bit; 0: none */
    uint64_t full_at;   /* the nth reservation from now on finds the disk full; 0: none */
} machine_files;

void machine_files_set(const machine_files *faults);
/* Since then. */
uint64_t machine_files_reads(void);
uint64_t machine_files_reservations(void);

/* Note changes below the directory, which is there and on the disk. The path is what the program's
 * paths begin with. */
void machine_power_watch(const char *directory);
/* The power goes before the nth change or fsync from now on; 0: never. */
void machine_power_cut(uint64_t nth);
/* Changes and fsyncs since machine_power_watch or machine_power_cut. */
uint64_t machine_power_events(void);
/* True if it has gone. */
bool machine_power_is_off(void);
/* The power is back, and the directory no longer watched. Returns how many changes are lost. */
uint32_t machine_power_return(void);

#endif
