/* The world of one rank: collectives are local copies and conversions. */
#ifndef ZI_COMM_SELF_SELF_H
#define ZI_COMM_SELF_SELF_H

#include "comm/comm.h"

zero_status zi_self_comm_create(zi_comm **out);

#endif
