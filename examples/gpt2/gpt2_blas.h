/* Which kernels of OpenBLAS the CPU's matrix products run on. */
#ifndef GPT2_BLAS_H
#define GPT2_BLAS_H

/* Vector instructions, each with all before it. */
typedef enum gpt2_vectors {
    GPT2_VECTORS_BASE,
    GPT2_VECTORS_AVX,
    GPT2_VECTORS_AVX2,
    GPT2_VECTORS_AVX512
} gpt2_vectors;

/* The vector instructions of this CPU. */
gpt2_vectors gpt2_vectors_here(void);

/* The vector instructions of the kernels that OpenBLAS names `core`. Names that are not known here
 * are of libraries that are newer, and count as AVX512. */
gpt2_vectors gpt2_vectors_of_core(const char *core);

/* OPENBLAS_CORETYPE for kernels that use them; NULL: no name. */
const char *gpt2_core_for(gpt2_vectors vectors);

/* An OpenBLAS that is older than the CPU does not know it and takes kernels for a much older one.
 * It chooses when it is loaded, so in that case this runs the program anew, as the same process
 * with the same line, with OPENBLAS_CORETYPE set to what the CPU has. Returns where there is
 * nothing to do: kernels fit, OPENBLAS_CORETYPE is set already, or the BLAS is another one. Call it
 * before anything else is begun. */
void gpt2_blas_start(char **argv);

/* "OpenBLAS 0.3.21, SkylakeX kernels", and what is wrong with them where they are older than the
 * CPU. The text stays. */
const char *gpt2_blas_text(void);

/* Threads of a product, where the BLAS lets one say. */
void gpt2_blas_use_threads(unsigned threads);

#endif
