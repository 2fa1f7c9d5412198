/* The values that an update reads and writes of one element. */
#ifndef ZI_OPTIMIZER_ELEMENT_H
#define ZI_OPTIMIZER_ELEMENT_H

typedef struct zi_element_state {
    float p;    /* parameter */
    float m;    /* first moment */
    float v;    /* second moment; of nothing particular where the optimizer has none */
    float root; /* out: the second moment's root, where there is one */
} zi_element_state;

#endif
