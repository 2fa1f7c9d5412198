/* The subcommands of `zero`. Each takes its part of the line, argv[0] being its own name, and
 * returns the program's exit status. */
#ifndef TOOLS_COMMANDS_H
#define TOOLS_COMMANDS_H

int command_bench(int argc, char **argv);
int command_calibrate(int argc, char **argv); /* of `zero bench` */
int command_ckpt(int argc, char **argv);
int command_io(int argc, char **argv);
int command_options(int argc, char **argv);
int command_plan(int argc, char **argv);
int command_sim(int argc, char **argv);

#endif
