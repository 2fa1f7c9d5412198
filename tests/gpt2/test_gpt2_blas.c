/* The libraries that gpt2_train multiplies by, as its first lines say. OpenBLAS's kernels are never
 * older than the CPU unless they are asked for; old_openblas.c plays a library that does not know
 * this CPU. oneDNN multiplies bf16 where it is asked for or the CPU has instructions for that. */
#include "gpt2_blas.h"
#include "gpt2_dnnl.h"
#include "gpt2_program.h"
#include "sanitizer.h"

TEST(cores_are_known_by_what_they_use)
{
    CHECK_EQ(gpt2_vectors_of_core("Prescott"), GPT2_VECTORS_BASE);
    CHECK_EQ(gpt2_vectors_of_core("Nehalem"), GPT2_VECTORS_BASE);
    CHECK_EQ(gpt2_vectors_of_core("Sandybridge"), GPT2_VECTORS_AVX);
    CHECK_EQ(gpt2_vectors_of_core("Haswell"), GPT2_VECTORS_AVX2);
    CHECK_EQ(gpt2_vectors_of_core("ZEN"), GPT2_VECTORS_AVX2);
    CHECK_EQ(gpt2_vectors_of_core("SkylakeX"), GPT2_VECTORS_AVX512);
    CHECK_EQ(gpt2_vectors_of_core("a core of the future"), GPT2_VECTORS_AVX512);
    CHECK(gpt2_core_for(GPT2_VECTORS_BASE) == NULL);
    for (int i = GPT2_VECTORS_AVX; i <= GPT2_VECTORS_AVX512; i++) {
        CHECK_EQ(gpt2_vectors_of_core(gpt2_core_for((gpt2_vectors)i)), i);
    }
}

#define OLDER "older than this CPU"
#define REPLACED " kernels (by itself it takes Prescott)\n"
#define SHORT_RUN "--steps 2 --val-every 0"
#define BLAS_RUN "--products blas " SHORT_RUN

static void check_says(const char *text, bool says)
{
    if ((strstr(output, text) != NULL) != says) {
        TEST_FAIL("%s\"%s\" in: %s", says ? "no " : "", text, output);
    }
}

/* Leaves the first lines of a run in `output`. */
static void begin_with_choice(void)
{
    if (gpt2_vectors_here() == GPT2_VECTORS_BASE) {
        SKIP("on this CPU no kernels are old");
    }
    CHECK_EQ(unsetenv("OPENBLAS_CORETYPE"), 0);
    begin();
    run_well("--ranks 2 " BLAS_RUN);
    if (strstr(output, "\nmatrix products: OpenBLAS ") == NULL) {
        end();
        SKIP("built with another CBLAS than OpenBLAS");
    }
}

TEST(what_was_asked_for_is_kept_and_called_old)
{
    begin_with_choice();
    CHECK_EQ(setenv("OPENBLAS_CORETYPE", "Prescott", 1), 0);
    run_well("--ranks 2 " BLAS_RUN);
    check_says("\nmatrix products: OpenBLAS ", true);
    check_says(", Prescott kernels: slow, they are " OLDER, true);
    check_says("; unset OPENBLAS_CORETYPE\n", true);
}

TEST(by_itself_it_takes_kernels_that_fit)
{
    begin_with_choice();
    check_says(OLDER, false);
}

/* With a library that takes this CPU for an old one. */
static void begin_pretence(void)
{
    if (UNDER_SANITIZER) {
        SKIP("a sanitizer wants to be loaded first");
    }
    begin_with_choice();
    CHECK_EQ(setenv("LD_PRELOAD", OLD_OPENBLAS, 1), 0);
}

TEST(a_library_that_does_not_know_the_cpu_is_told)
{
    begin_pretence();
    run_well("--ranks 2 " BLAS_RUN);
    check_says(REPLACED, true);
    check_says(OLDER, false);
    /* If even that does not help, it is said, and it does not begin anew for ever. */
    CHECK_EQ(setenv("OLD_OPENBLAS_STAYS", "1", 1), 0);
    run_well("--ranks 2 " BLAS_RUN);
    check_says(OLDER, true);
    check_says("; use a newer OpenBLAS\n", true);
    /* Nor anything where kernels are asked for, and plans and texts need none. */
    CHECK_EQ(setenv("OPENBLAS_CORETYPE", "Prescott", 1), 0);
    run_well("--ranks 2 " BLAS_RUN);
    check_says("; unset OPENBLAS_CORETYPE\n", true);
    run_well("--plan");
    check_says("OpenBLAS", false);
    CHECK_EQ(unsetenv("LD_PRELOAD"), 0);
}

TEST(so_it_is_under_mpirun)
{
#ifdef GPT2_MPIRUN
    begin_pretence();
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    CHECK_EQ(unsetenv("LD_PRELOAD"), 0);
    const int code =
        run_shell(test_text("'%s' --oversubscribe --bind-to none -x LD_PRELOAD='%s' -n 2 '%s' %s",
                            GPT2_MPIRUN, OLD_OPENBLAS, GPT2_TRAIN, with_model(BLAS_RUN)));
    if (code != 0) {
        TEST_FAIL("status %d: %s", code, output);
    }
    check_says("ranks: 2 (mpi", true);
    check_says(REPLACED, true);
    check_says(OLDER, false);
#else
    SKIP("built without MPI, or no mpirun was found");
#endif
}

/* --- oneDNN ----------------------------------------------------------------------------------- */

/* True if oneDNN multiplies bf16 here, by instructions or emulated. */
static bool dnnl_multiplies(void)
{
    gpt2_error error = {""};
    gpt2_dnnl *dnnl = NULL;
    const size_t counts[] = {1, 1};
    const bool good = gpt2_dnnl_create(NULL, counts, 1, &error, &dnnl) == ZERO_OK;
    gpt2_dnnl_destroy(dnnl);
    return good;
}

#define BY_DNNL "\nmatrix products: oneDNN "

TEST(auto_takes_onednn_where_the_cpu_multiplies_bf16)
{
    begin();
    run_well("--ranks 2 --dtype bf16 " SHORT_RUN);
    check_says(BY_DNNL, gpt2_dnnl_is_fast());
    run_well("--ranks 2 --dtype f32 " SHORT_RUN);
    check_says(BY_DNNL, false);
    run_well("--ranks 2 --dtype f16 " SHORT_RUN);
    check_says(BY_DNNL, false);
    run_well("--ranks 2 --dtype bf16 --products blas " SHORT_RUN);
    check_says(BY_DNNL, false);
    CHECK_EQ(setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE", 1), 0);
    run_well("--ranks 2 --dtype bf16 " SHORT_RUN);
    check_says(BY_DNNL, false);
}

TEST(onednn_that_was_asked_for_is_taken)
{
    if (!dnnl_multiplies()) {
        SKIP("no oneDNN, or a CPU on which it has no bf16");
    }
    begin();
    run_well("--ranks 2 --dtype bf16 --products dnnl " SHORT_RUN);
    check_says(BY_DNNL, true);
    check_says("; attention: ", true);
    check_says("slow, this CPU has no instructions for bf16", !gpt2_dnnl_is_fast());
    run_well("--ranks 1 --dtype bf16 --products dnnl --sample 20 --prompt he " SHORT_RUN);
    CHECK_EQ(setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1), 0);
    check_refused("--ranks 2 --dtype bf16 --products dnnl " SHORT_RUN,
                  "needs AVX-512; use --products blas");
}

TEST(onednn_that_is_missing_is_named)
{
    gpt2_error error = {""};
    gpt2_dnnl *dnnl = NULL;
    const size_t counts[] = {1, 1};
    if (gpt2_dnnl_create(NULL, counts, 1, &error, &dnnl) == ZERO_OK ||
        strstr(error.text, "was built without oneDNN") == NULL) {
        gpt2_dnnl_destroy(dnnl);
        SKIP("built with oneDNN");
    }
    begin();
    check_refused("--ranks 2 --dtype bf16 --products dnnl " SHORT_RUN, "Debian: libdnnl-dev");
}

TEST(onednn_is_for_bf16_on_a_cpu)
{
    begin();
    check_refused("--products dnnl --dtype f32", "is for --dtype bf16, not f32");
    check_refused("--products dnnl --dtype f16", "is for --dtype bf16, not f16");
    check_refused("--products mkl", "--products mkl: give auto, blas or dnnl");
    check_refused("--products dnnl --device cuda", "is for --device cpu");
}
