/* Owns the picture in text of `zero bench memory`: a bar for each mix, and a table of every role.
 */
#include <inttypes.h>
#include <string.h>

#include "bench_footprint.h"

#define BAR 31

/* What a bar's letters stand for; all that is in none of the roles is the last one's. */
enum { PART_PARAM, PART_GRAD, PART_STATE, PART_REST, PARTS };

static int part_of(int role)
{
    return role == ZERO_ROLE_PARAM       ? PART_PARAM
           : role == ZERO_ROLE_GRAD      ? PART_GRAD
           : role < ZERO_ROLE_SHARDS_MAX ? PART_STATE
                                         : PART_REST;
}

/* Bytes of each part, of device and host memory or of the disk. */
static void sum_parts(const footprint_mix *mix, bool disk, uint64_t parts[PARTS])
{
    const uint64_t all =
        disk ? mix->planned.tier_bytes[ZERO_TIER_DISK] : footprint_memory(&mix->planned);
    memset(parts, 0, PARTS * sizeof *parts);
    parts[PART_REST] = all;
    for (int role = 0; role < ZERO_ROLE_SHARDS_MAX; role++) {
        const bool there = (footprint_tier(mix, role) == ZERO_TIER_DISK) == disk;
        parts[part_of(role)] += there ? mix->planned.bytes[role] : 0;
    }
    for (int part = 0; part < PART_REST; part++) {
        parts[PART_REST] -= parts[part] < parts[PART_REST] ? parts[part] : parts[PART_REST];
    }
}

/* Ends of parts are rounded, so that they add up; '|' is where the paper's formula ends. */
static const char *bar_text(const uint64_t parts[PARTS], double paper, double scale,
                            char text[BAR + 1])
{
    uint64_t sum = 0;
    size_t used = 0;
    for (int part = 0; part < PARTS; part++) {
        sum += parts[part];
        const size_t end = (size_t)((double)sum * BAR / scale + 0.5);
        for (; used < end && used < BAR; used++) {
            text[used] = "pgos"[part];
        }
    }
    const size_t mark = (size_t)(paper * BAR / scale + 0.5);
    for (; used < mark && used < BAR; used++) {
        text[used] = ' ';
    }
    if (mark > 0) {
        text[mark - 1] = '|';
    }
    text[used] = '\0';
    return text;
}

/* The largest bar. */
static double scale_of(const footprint *f)
{
    double most = 1;
    for (uint32_t i = 0; i < f->mix_count; i++) {
        const footprint_mix *mix = &f->mixes[i];
        const double memory = (double)footprint_memory(&mix->planned);
        const double disk = (double)mix->planned.tier_bytes[ZERO_TIER_DISK];
        most = memory > most ? memory : most;
        most = disk > most ? disk : most;
        most = mix->measured && mix->paper > most ? mix->paper : most;
    }
    return most;
}

/* What the system does not tell is a dash. */
static const char *amount(bool told, uint64_t bytes, char text[16])
{
    if (told) {
        (void)snprintf(text, 16, "%8.2f", (double)bytes / FOOTPRINT_MIB);
    } else {
        (void)snprintf(text, 16, "%8s", "-");
    }
    return text;
}

static void print_mix(const footprint_mix *mix, double scale, FILE *out)
{
    char text[3][16];
    char bar[BAR + 1];
    uint64_t parts[PARTS];
    sum_parts(mix, false, parts);
    fprintf(out, "%-20s%s %s %s  %s\n", mix->name,
            amount(true, footprint_memory(&mix->planned), text[0]),
            amount(true, footprint_memory(&mix->held), text[1]),
            amount(mix->used_bytes != 0, mix->used_bytes, text[2]),
            bar_text(parts, mix->paper, scale, bar));
    if (mix->planned.tier_bytes[ZERO_TIER_DISK] != 0) {
        sum_parts(mix, true, parts);
        fprintf(out, "%-20s%s %s %8s  %s\n", "    on disk",
                amount(true, mix->planned.tier_bytes[ZERO_TIER_DISK], text[0]),
                amount(mix->files_told, mix->file_bytes, text[1]), "",
                bar_text(parts, 0, scale, bar));
    }
}

static void print_roles(const footprint_mix *mix, FILE *out)
{
    fprintf(out, "\nstage %-29s  %-7s %16s %16s\n", mix->name, "tier", "planned", "measured");
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        const zero_tier tier = footprint_tier(mix, role);
        char measured[24];
        (void)snprintf(measured, sizeof measured, "%" PRIu64, mix->held.bytes[role]);
        if (mix->planned.bytes[role] + mix->held.bytes[role] != 0) {
            fprintf(out, "  %-33s  %-7s %16" PRIu64 " %16s\n", zero_role_name((zero_role)role),
                    zero_tier_name(tier), mix->planned.bytes[role],
                    tier == ZERO_TIER_DISK ? "in files" : measured);
        }
    }
    if (mix->planned.tier_bytes[ZERO_TIER_DISK] != 0) {
        fprintf(out, "  %-33s  %-7s %16" PRIu64 " %16" PRIu64 "\n", "files, with extents' padding",
                "disk", mix->planned.tier_bytes[ZERO_TIER_DISK], mix->file_bytes);
    }
    if (mix->paper > 0) {
        fprintf(out, "  %-33s  %-7s %16.0f\n", "the paper's formula", "", mix->paper);
    }
}

void footprint_print_notes(const footprint *f, FILE *out)
{
    const bool formula = f->mixes[0].paper > 0;
    if (formula) {
        fputs("The mark (|) is the paper's 16P, 4P + 12P/N, 2P + 14P/N or 16P/N bytes\n"
              "(Rajbhandari et al., \"ZeRO\", 2020, section 3), P 16-bit parameters, N ranks.\n",
              out);
        fputs(f->bf16_sums
                  ? "Sums of gradients are in bf16 here too (--sums). "
                  : "Sums of gradients are in fp32 here, 2P more (--sums bf16: as there). ",
              out);
    }
    fprintf(out,
            "On top\ncome slots that units are gathered to, tables, and what extents on disk pass\n"
            "through. Grown: %s of all ranks, the part of one.\n",
            f->used);
}

void footprint_print(const footprint *f, bool roles, FILE *out)
{
    const double scale = scale_of(f);
    fprintf(out, "%s: %.4g million parameters, %s, %" PRIu32 " rank%s\n\n", f->model,
            (double)f->parameters / 1e6, zero_dtype_name(f->transformer.dtype), f->ranks,
            f->ranks == 1 ? "" : "s");
    fprintf(out, "%-20s%8s %8s %8s  %s\n", "MiB of a rank; stage", "planned", "measured", "grown",
            "p params g grads o state s rest");
    for (uint32_t i = 0; i < f->mix_count; i++) {
        if (f->mixes[i].measured) {
            print_mix(&f->mixes[i], scale, out);
        }
    }
    for (uint32_t i = 0; roles && i < f->mix_count; i++) {
        if (f->mixes[i].measured) {
            print_roles(&f->mixes[i], out);
        }
    }
    fputc('\n', out);
    footprint_print_notes(f, out);
    fprintf(out, "%" PRIu32 " figures by role, tier and rank are measured: ", f->figures);
    if (f->differ == 0) {
        fprintf(out, "all as planned, to the byte.\n\n");
    } else {
        fprintf(out, "%" PRIu32 " differ from the plan.\n\n", f->differ);
    }
}
