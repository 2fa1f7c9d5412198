/* plain_trainer.c with libzero in it: parameters, gradients and optimizer state are split over the
 * processes that mpirun, srun or torchrun start; each trains on its part of a batch. Usage:
 * sharded_trainer TEXT CHECKPOINT [STAGE [FOLDER]]; FOLDER: all state is on disk there. */
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zero/zero.h>

/* Vocabulary, context, channels, heads, layers, hidden channels, sequences in a batch. */
enum { V = 256, T = 32, C = 48, H = 4, L = 4, F = 4 * C, B = 4, N = B * T, STEPS = 60 };
#define LR 1e-3f
#define BETA1 0.9f
#define BETA2 0.95f
#define EPS 1e-8f
#define DECAY 0.1f

/* ---- parameters: one block, in it an array of all layers for each kind ---- */

enum tensor {
    WTE, /* also the head's matrix */
    WPE,
    LNFW,
    LNFB,
    LN1W, /* from here on a layer's */
    LN1B,
    QKVW,
    QKVB,
    ATTW,
    ATTB,
    LN2W,
    LN2B,
    FCW,
    FCB,
    OUTW,
    OUTB,
    TENSORS
};

typedef struct shape {
    const char *name;
    size_t layers, rows, cols;
} shape;

static const shape shapes[TENSORS] = {
    {"wte", 1, V, C},  {"wpe", 1, T, C},  {"lnfw", 1, 1, C},     {"lnfb", 1, 1, C},
    {"ln1w", L, 1, C}, {"ln1b", L, 1, C}, {"qkvw", L, 3 * C, C}, {"qkvb", L, 1, 3 * C},
    {"attw", L, C, C}, {"attb", L, 1, C}, {"ln2w", L, 1, C},     {"ln2b", L, 1, C},
    {"fcw", L, F, C},  {"fcb", L, 1, F},  {"outw", L, C, F},     {"outb", L, 1, C}};

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static size_t size_of(int tensor)
{
    return shapes[tensor].layers * shapes[tensor].rows * shapes[tensor].cols;
}

static size_t parameter_count(void)
{
    size_t count = 0;
    for (int t = 0; t < TENSORS; t++) {
        count += size_of(t);
    }
    return count;
}

/* ---- state ---- */

typedef struct layer_acts {
    float ln1[N * C], qkv[N * 3 * C], prob[B * H * T * T], att[N * C], mid[N * C];
    float ln2[N * C], fc[N * F], gelu[N * F];
} layer_acts;

/* The activations that forward leaves for backward, and their gradients. */
typedef struct acts {
    float x[L + 1][N * C], lnf[N * C], logits[N * V];
    layer_acts layers[L];
} acts;

typedef struct trainer {
    float *params;
    zero_world *world;
    zero_model *model;
    zero_engine *engine;
    zero_step_params adamw;
    acts *acts;
    acts *d;
    int steps; /* so far */
    int rows;  /* positions that this process trains on in a step: whole sequences */
    unsigned char *text;
    size_t text_bytes;
    unsigned long long seed;
} trainer;

static void *take(size_t count, size_t bytes)
{
    void *memory = calloc(count, bytes);
    if (memory == NULL) {
        fail("memory", "there is too little");
    }
    return memory;
}

#define TRY(call) ((call) == ZERO_OK ? (void)0 : fail("libzero", zero_last_error()->message))

/* Describe the model: a unit for each part. */
static void open_engine(trainer *tr, const zero_engine_options *options)
{
    zero_tensor_desc descs[TENSORS];
    float *at = tr->params;
    for (int t = 0; t < TENSORS; at += size_of(t++)) {
        const shape *s = &shapes[t];
        descs[t] = (zero_tensor_desc){.name = s->name, .dims = 2, .shape = {s->rows, s->cols}};
        descs[t].initial.data = at;
    }
    TRY(zero_model_create(&tr->model));
    const zero_unit_desc outer = {.name = "outer", .tensors = descs, .tensor_count = LN1W};
    const zero_unit_desc layers = {
        .name = "layer", .layers = L, .tensors = descs + LN1W, .tensor_count = TENSORS - LN1W};
    TRY(zero_unit_add(tr->model, &outer, NULL, NULL));
    TRY(zero_unit_add(tr->model, &layers, NULL, NULL));
    TRY(zero_engine_create(tr->world, tr->model, options, &tr->engine));
}

/* The tensors that a part of the model uses, and their gradients unless g is NULL, until
 * its unit's release. Part 0 is what is outside the layers, part 1 + l is layer l. */
static void find_tensors(trainer *tr, uint32_t part, float **w, float **g)
{
    const zero_unit_view *view;
    TRY(zero_unit_acquire(tr->engine, part, g == NULL ? ZERO_PASS_FORWARD : ZERO_PASS_BACKWARD,
                          zero_stream_host(), &view));
    for (uint32_t i = 0, t = part > 0 ? LN1W : 0; i < view->tensor_count; i++, t++) {
        w[t] = view->params[i].data;
        if (g != NULL) {
            g[t] = view->grads[i].data;
        }
    }
}

static double next_random(trainer *tr)
{
    tr->seed = tr->seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return ((double)(tr->seed >> 11) + 0.5) / 9007199254740992.0;
}

static void initialise(trainer *tr)
{
    float *at = tr->params;
    for (int t = 0; t < TENSORS; t++) {
        printf("%-5s %zu x %zu x %zu\n", shapes[t].name, shapes[t].layers, shapes[t].rows,
               shapes[t].cols);
        const int is_gain = t == LN1W || t == LN2W || t == LNFW;
        for (size_t i = 0; i < size_of(t); i++) {
            const double normal =
                sqrt(-2 * log(next_random(tr))) * cos(6.283185307179586 * next_random(tr));
            at[i] = is_gain ? 1 : shapes[t].rows > 1 ? 0.05f * (float)normal : 0;
        }
        at += size_of(t);
    }
}

/* ---- layers ---- */

static void matmul(float *out, const float *in, const float *w, const float *bias, int rows, int k,
                   int n)
{
    for (int r = 0; r < rows; r++) {
        for (int j = 0; j < n; j++) {
            float sum = bias != NULL ? bias[j] : 0;
            for (int i = 0; i < k; i++) {
                sum += in[r * k + i] * w[j * k + i];
            }
            out[r * n + j] = sum;
        }
    }
}

/* Adds to d_in, d_w and d_bias. */
static void matmul_back(float *d_in, float *d_w, float *d_bias, const float *d_out, const float *in,
                        const float *w, int rows, int k, int n)
{
    for (int r = 0; r < rows; r++) {
        for (int j = 0; j < n; j++) {
            const float d = d_out[r * n + j];
            for (int i = 0; i < k; i++) {
                d_in[r * k + i] += d * w[j * k + i];
                d_w[j * k + i] += d * in[r * k + i];
            }
            if (d_bias != NULL) {
                d_bias[j] += d;
            }
        }
    }
}

static void moments_of(const float *in, float *mean, float *scale)
{
    float sum = 0, squares = 0;
    for (int i = 0; i < C; i++) {
        sum += in[i];
    }
    *mean = sum / C;
    for (int i = 0; i < C; i++) {
        squares += (in[i] - *mean) * (in[i] - *mean);
    }
    *scale = 1 / sqrtf(squares / C + 1e-5f);
}

static void norm(float *out, const float *in, const float *w, const float *b, int rows)
{
    for (int r = 0; r < rows; r++, in += C, out += C) {
        float mean, scale;
        moments_of(in, &mean, &scale);
        for (int i = 0; i < C; i++) {
            out[i] = (in[i] - mean) * scale * w[i] + b[i];
        }
    }
}

static void norm_back(float *d_in, float *d_w, float *d_b, const float *d_out, const float *in,
                      const float *w, int rows)
{
    for (int r = 0; r < rows; r++, in += C, d_in += C, d_out += C) {
        float mean, scale, sum = 0, product = 0;
        moments_of(in, &mean, &scale);
        for (int i = 0; i < C; i++) {
            const float normal = (in[i] - mean) * scale;
            d_w[i] += d_out[i] * normal;
            d_b[i] += d_out[i];
            sum += d_out[i] * w[i];
            product += d_out[i] * w[i] * normal;
        }
        for (int i = 0; i < C; i++) {
            const float normal = (in[i] - mean) * scale;
            d_in[i] += scale * (d_out[i] * w[i] - sum / C - normal * product / C);
        }
    }
}

enum { D = C / H }; /* channels of a head */

/* Of one head at one position: query, key and value are C apart in a row of qkv. */
static void attend(float *out, float *prob, const float *qkv, int t, int head)
{
    const float *q = qkv + t * 3 * C + head * D;
    float largest = -1e30f, sum = 0;
    for (int s = 0; s <= t; s++) {
        const float *k = qkv + s * 3 * C + C + head * D;
        prob[s] = 0;
        for (int i = 0; i < D; i++) {
            prob[s] += q[i] * k[i] / sqrtf(D);
        }
        largest = fmaxf(largest, prob[s]);
    }
    for (int s = 0; s <= t; s++) {
        prob[s] = expf(prob[s] - largest);
        sum += prob[s];
    }
    for (int s = 0; s <= t; s++) {
        const float *v = qkv + s * 3 * C + 2 * C + head * D;
        prob[s] /= sum;
        for (int i = 0; i < D; i++) {
            out[t * C + head * D + i] += prob[s] * v[i];
        }
    }
}

static void attend_back(float *d_qkv, const float *d_out, const float *prob, const float *qkv,
                        int t, int head)
{
    const float *q = qkv + t * 3 * C + head * D;
    const float *d = d_out + t * C + head * D;
    float d_prob[T], mean = 0;
    for (int s = 0; s <= t; s++) {
        const float *v = qkv + s * 3 * C + 2 * C + head * D;
        d_prob[s] = 0;
        for (int i = 0; i < D; i++) {
            d_prob[s] += d[i] * v[i];
            d_qkv[s * 3 * C + 2 * C + head * D + i] += prob[s] * d[i];
        }
        mean += prob[s] * d_prob[s];
    }
    for (int s = 0; s <= t; s++) {
        const float d_score = prob[s] * (d_prob[s] - mean) / sqrtf(D);
        for (int i = 0; i < D; i++) {
            d_qkv[t * 3 * C + head * D + i] += d_score * qkv[s * 3 * C + C + head * D + i];
            d_qkv[s * 3 * C + C + head * D + i] += d_score * q[i];
        }
    }
}

static void gelu(float *out, const float *in, int count)
{
    for (int i = 0; i < count; i++) {
        out[i] = 0.5f * in[i] * (1 + erff(in[i] * 0.70710678f));
    }
}

static void gelu_back(float *d_in, const float *d_out, const float *in, int count)
{
    for (int i = 0; i < count; i++) {
        const float density = 0.39894228f * expf(-0.5f * in[i] * in[i]);
        d_in[i] += d_out[i] * (0.5f * (1 + erff(in[i] * 0.70710678f)) + in[i] * density);
    }
}

static void add(float *to, const float *from, int count)
{
    for (int i = 0; i < count; i++) {
        to[i] += from[i];
    }
}

static void block(float *out, layer_acts *a, const float *in, float *const *w, int rows)
{
    norm(a->ln1, in, w[LN1W], w[LN1B], rows);
    matmul(a->qkv, a->ln1, w[QKVW], w[QKVB], rows, C, 3 * C);
    memset(a->att, 0, sizeof a->att);
    for (int i = 0; i < rows * H; i++) {
        const int s = i / H / T;
        attend(a->att + s * T * C, a->prob + i * T, a->qkv + s * T * 3 * C, i / H % T, i % H);
    }
    matmul(a->mid, a->att, w[ATTW], w[ATTB], rows, C, C);
    add(a->mid, in, rows * C);
    norm(a->ln2, a->mid, w[LN2W], w[LN2B], rows);
    matmul(a->fc, a->ln2, w[FCW], w[FCB], rows, C, F);
    gelu(a->gelu, a->fc, rows * F);
    matmul(out, a->gelu, w[OUTW], w[OUTB], rows, F, C);
    add(out, a->mid, rows * C);
}

/* d: zeros; in it the gradients of a. d_in: zeros. */
static void block_back(float *d_in, layer_acts *d, const float *d_out, const layer_acts *a,
                       const float *in, float *const *w, float *const *g, int rows)
{
    add(d->mid, d_out, rows * C);
    matmul_back(d->gelu, g[OUTW], g[OUTB], d_out, a->gelu, w[OUTW], rows, F, C);
    gelu_back(d->fc, d->gelu, a->fc, rows * F);
    matmul_back(d->ln2, g[FCW], g[FCB], d->fc, a->ln2, w[FCW], rows, C, F);
    norm_back(d->mid, g[LN2W], g[LN2B], d->ln2, a->mid, w[LN2W], rows);
    add(d_in, d->mid, rows * C);
    matmul_back(d->att, g[ATTW], g[ATTB], d->mid, a->att, w[ATTW], rows, C, C);
    for (int i = 0; i < rows * H; i++) {
        const int s = i / H / T;
        attend_back(d->qkv + s * T * 3 * C, d->att + s * T * C, a->prob + i * T,
                    a->qkv + s * T * 3 * C, i / H % T, i % H);
    }
    matmul_back(d->ln1, g[QKVW], g[QKVB], d->qkv, a->ln1, w[QKVW], rows, C, 3 * C);
    norm_back(d_in, g[LN1W], g[LN1B], d->ln1, in, w[LN1W], rows);
}

/* The mean loss; logits become its gradient by them. */
static float cross_entropy(float *logits, const unsigned char *targets, int rows)
{
    double loss = 0;
    for (int r = 0; r < rows; r++, logits += V) {
        float largest = logits[0], sum = 0;
        for (int i = 1; i < V; i++) {
            largest = fmaxf(largest, logits[i]);
        }
        for (int i = 0; i < V; i++) {
            sum += expf(logits[i] - largest);
        }
        loss += (double)(logf(sum) + largest - logits[targets[r]]);
        for (int i = 0; i < V; i++) {
            const float p = expf(logits[i] - largest) / sum;
            logits[i] = (p - (i == targets[r] ? 1.0f : 0.0f)) / (float)rows;
        }
    }
    return (float)(loss / rows);
}

/* ---- the model ---- */

static float forward(trainer *tr, const unsigned char *in, const unsigned char *targets)
{
    acts *a = tr->acts;
    float *w[TENSORS];
    find_tensors(tr, 0, w, NULL);
    for (int i = 0; i < tr->rows * C; i++) {
        a->x[0][i] = w[WTE][in[i / C] * C + i % C] + w[WPE][i / C % T * C + i % C];
    }
    for (uint32_t l = 0; l < L; l++) {
        find_tensors(tr, 1 + l, w, NULL);
        block(a->x[l + 1], &a->layers[l], a->x[l], w, tr->rows);
        TRY(zero_unit_release(tr->engine, 1 + l, zero_stream_host()));
    }
    norm(a->lnf, a->x[L], w[LNFW], w[LNFB], tr->rows);
    matmul(a->logits, a->lnf, w[WTE], NULL, tr->rows, C, V);
    TRY(zero_unit_release(tr->engine, 0, zero_stream_host()));
    return cross_entropy(a->logits, targets, tr->rows);
}

static void backward(trainer *tr, const unsigned char *in)
{
    const acts *a = tr->acts;
    acts *d = tr->d;
    float *w[TENSORS], *g[TENSORS];
    memset(d, 0, sizeof *d);
    find_tensors(tr, 0, w, g);
    matmul_back(d->lnf, g[WTE], NULL, a->logits, a->lnf, w[WTE], tr->rows, C, V);
    norm_back(d->x[L], g[LNFW], g[LNFB], d->lnf, a->x[L], w[LNFW], tr->rows);
    for (uint32_t l = L; l-- > 0;) {
        find_tensors(tr, 1 + l, w, g);
        block_back(d->x[l], &d->layers[l], d->x[l + 1], &a->layers[l], a->x[l], w, g, tr->rows);
        TRY(zero_unit_release(tr->engine, 1 + l, zero_stream_host()));
    }
    for (int i = 0; i < tr->rows * C; i++) {
        g[WTE][in[i / C] * C + i % C] += d->x[0][i];
        g[WPE][i / C % T * C + i % C] += d->x[0][i];
    }
    TRY(zero_unit_release(tr->engine, 0, zero_stream_host()));
}

static float train_step(trainer *tr)
{
    unsigned char in[N], targets[N];
    for (int s = 0; s < B; s++) {
        const size_t at = (size_t)(next_random(tr) * (double)(tr->text_bytes - T - 1));
        memcpy(in + s * T, tr->text + at, T);
        memcpy(targets + s * T, tr->text + at + 1, T);
    }
    const uint32_t first = zero_world_rank(tr->world) * (uint32_t)tr->rows;
    TRY(zero_micro_begin(tr->engine, ZERO_MICRO_LAST));
    const float loss = forward(tr, in + first, targets + first);
    backward(tr, in + first);
    TRY(zero_micro_end(tr->engine));
    tr->steps++;
    TRY(zero_step(tr->engine, &tr->adamw, zero_stream_host()));
    return loss;
}

/* ---- files ---- */

static void read_text(trainer *tr, const char *path)
{
    FILE *file = fopen(path, "rb");
    tr->text = take(1 << 20, 1);
    tr->text_bytes = file != NULL ? fread(tr->text, 1, 1 << 20, file) : 0;
    if (tr->text_bytes < T + 2 || fclose(file) != 0) {
        fail(path, "cannot be read, or is too short");
    }
}

static void save(const trainer *tr, const char *path)
{
    for (uint32_t t = 0; t < zero_model_tensor_count(tr->model); t++) {
        zero_tensor_desc desc;
        TRY(zero_model_tensor_desc(tr->model, t, &desc));
        TRY(zero_tensor_export(tr->engine, t, ZERO_ROLE_PARAM, &desc.initial));
    }
    if (zero_world_rank(tr->world) != 0) {
        return;
    }
    char part[4096]; /* the file is replaced when all of it is written */
    (void)snprintf(part, sizeof part, "%s.part", path);
    FILE *file = fopen(part, "wb");
    const size_t count = parameter_count();
    if (file != NULL && fwrite(tr->params, sizeof(float), count, file) == count &&
        fflush(file) == 0 && rename(part, path) == 0) {
        (void)fclose(file);
        return;
    }
    const int reason = errno;
    (void)remove(part);
    fail(path, strerror(reason));
}

int main(int argc, char **argv)
{
    trainer tr = {.seed = 1, .rows = N};
    if (argc < 3) {
        fail(argv[0], "needs TEXT and CHECKPOINT");
    }
    read_text(&tr, argv[1]);
    tr.params = take(parameter_count(), sizeof(float));
    tr.acts = take(1, sizeof *tr.acts);
    tr.d = take(1, sizeof *tr.d);
    initialise(&tr);
    zero_engine_options options = zero_engine_options_init();
    options.stage = (zero_stage)(argc > 3 ? atoi(argv[3]) : 3);
    options.disk_directories = (const char *const *)(argv + 4);
    options.disk_directory_count = argc > 4;
    for (int role = 0; role < ZERO_ROLE_SHARDS_MAX; role++) {
        if (zero_role_exists((zero_role)role)) {
            options.tier[role] = argc > 4 ? ZERO_TIER_DISK : ZERO_TIER_DEVICE;
        }
    }
    TRY(zero_world_create_launched(0, &tr.world));
    tr.rows = N / (int)zero_world_size(tr.world);
    open_engine(&tr, &options);
    tr.adamw = zero_step_params_init();
    tr.adamw.hyper.adamw = (zero_adamw){LR, BETA1, BETA2, EPS, DECAY};
    if (tr.rows % T != 0) {
        fail("batch", "cannot be divided into whole sequences");
    }
    while (tr.steps < STEPS) {
        const float loss = train_step(&tr);
        printf("step %d  loss %.6f\n", tr.steps, (double)loss);
    }
    save(&tr, argv[2]);
    free(tr.params);
    zero_engine_destroy(tr.engine);
    zero_model_destroy(tr.model);
    zero_world_destroy(tr.world);
    free(tr.acts);
    free(tr.d);
    free(tr.text);
    return 0;
}
