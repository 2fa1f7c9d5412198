/* SIGINT and SIGTERM as a wish to stop: they are noted, and the ranks agree on when. */
#ifndef GPT2_STOP_H
#define GPT2_STOP_H

/* From here on the first SIGINT or SIGTERM is noted, a second SIGINT ends the program at once, and
 * what cannot be written is an error of the write instead of SIGXFSZ or SIGPIPE. A signal that is
 * ignored already (nohup) stays so. */
void gpt2_stop_install(void);

/* The signal that came, or 0. Any thread. */
int gpt2_stop_asked(void);

#endif
