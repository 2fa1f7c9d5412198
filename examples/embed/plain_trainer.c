/* An ordinary trainer in the manner of llm.c: a GPT over bytes, fp32 on one CPU, with one block of
 * parameters, one of gradients, two of moments, and all layers of one kind in one array.
 * sharded_trainer.c is the same program with libzero in it. Usage: plain_trainer TEXT CHECKPOINT */
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    float *grads;
    float *moment1;
    float *moment2;
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

/* The tensors that a part of the model uses, and their gradients unless g is NULL. Part 0 is what
 * is outside the layers, part 1 + l is layer l. */
static void find_tensors(trainer *tr, uint32_t part, float **w, float **g)
{
    size_t at = 0;
    for (int t = 0; t < TENSORS; at += size_of(t++)) {
        const size_t first =
            at + (part > 0 && t >= LN1W ? part - 1 : 0) * shapes[t].rows * shapes[t].cols;
        w[t] = tr->params + first;
        if (g != NULL) {
            g[t] = tr->grads + first;
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
    }
    norm(a->lnf, a->x[L], w[LNFW], w[LNFB], tr->rows);
    matmul(a->logits, a->lnf, w[WTE], NULL, tr->rows, C, V);
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
    }
    for (int i = 0; i < tr->rows * C; i++) {
        g[WTE][in[i / C] * C + i % C] += d->x[0][i];
        g[WPE][i / C % T * C + i % C] += d->x[0][i];
    }
}

/* AdamW. */
static void update(trainer *tr)
{
    const float unbias1 = 1 - powf(BETA1, (float)tr->steps);
    const float unbias2 = 1 - powf(BETA2, (float)tr->steps);
    for (size_t i = 0; i < parameter_count(); i++) {
        const float g = tr->grads[i];
        tr->moment1[i] = BETA1 * tr->moment1[i] + (1 - BETA1) * g;
        tr->moment2[i] = BETA2 * tr->moment2[i] + (1 - BETA2) * g * g;
        const float down = sqrtf(tr->moment2[i] / unbias2) + EPS;
        tr->params[i] -= LR * (tr->moment1[i] / unbias1 / down + DECAY * tr->params[i]);
    }
}

static float train_step(trainer *tr)
{
    unsigned char in[N], targets[N];
    for (int s = 0; s < B; s++) {
        const size_t at = (size_t)(next_random(tr) * (double)(tr->text_bytes - T - 1));
        memcpy(in + s * T, tr->text + at, T);
        memcpy(targets + s * T, tr->text + at + 1, T);
    }
    memset(tr->grads, 0, parameter_count() * sizeof(float));
    const float loss = forward(tr, in, targets);
    backward(tr, in);
    tr->steps++;
    update(tr);
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
    tr.grads = take(parameter_count(), sizeof(float));
    tr.moment1 = take(parameter_count(), sizeof(float));
    tr.moment2 = take(parameter_count(), sizeof(float));
    tr.acts = take(1, sizeof *tr.acts);
    tr.d = take(1, sizeof *tr.d);
    initialise(&tr);
    if (tr.rows % T != 0) {
        fail("batch", "cannot be divided into whole sequences");
    }
    while (tr.steps < STEPS) {
        const float loss = train_step(&tr);
        printf("step %d  loss %.6f\n", tr.steps, (double)loss);
    }
    save(&tr, argv[2]);
    free(tr.params);
    free(tr.grads);
    free(tr.moment1);
    free(tr.moment2);
    free(tr.acts);
    free(tr.d);
    free(tr.text);
    return 0;
}
