/* Owns what the subcommands of `zero ckpt` share: where a word points, and how things are printed.
 */
#include "ckpt.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "out_file.h"
#include "script.h"
#include "zero/status.h"

int ckpt_fail(void)
{
    char text[CKPT_NAME_BYTES];
    return bench_fail("%s", ckpt_name(zero_last_error()->message, text));
}

/* ---- where a word points ---- */

static bool has_name(const char *folder, const char *name)
{
    char path[ZI_CHECKPOINT_PATH_BYTES];
    struct stat kind;
    return zi_checkpoint_path(path, folder, name) == ZERO_OK && lstat(path, &kind) == 0;
}

/* A file, or a folder that is neither a checkpoint nor a run's directory. */
static bool is_weights(const char *word)
{
    struct stat kind;
    if (stat(word, &kind) != 0 || !S_ISDIR(kind.st_mode)) {
        return stat(word, &kind) == 0;
    }
    return !has_name(word, ZI_MANIFEST_NAME) && !has_name(word, "latest") &&
           (has_name(word, "model.safetensors") || has_name(word, "model.safetensors.index.json"));
}

int ckpt_find(const char *word, char folder[ZI_CHECKPOINT_PATH_BYTES])
{
    char passed[ZI_CHECKPOINT_PASSED_BYTES];
    char text[CKPT_NAME_BYTES];
    const int failed = CKPT_TRY(zi_checkpoint_find(word, NULL, folder, passed));
    if (failed == 0 && passed[0] != '\0') {
        (void)fprintf(stderr, "zero ckpt: %s is taken: %s\n", folder, ckpt_name(passed, text));
    }
    return failed;
}

int ckpt_open(const char *word, char folder[ZI_CHECKPOINT_PATH_BYTES], zi_source **reader)
{
    if (is_weights(word)) {
        if (strlen(word) >= ZI_CHECKPOINT_PATH_BYTES) {
            return bench_fail("%.80s..: the path is too long", word);
        }
        (void)snprintf(folder, ZI_CHECKPOINT_PATH_BYTES, "%s", word);
    } else if (ckpt_find(word, folder) != 0) {
        return 1;
    }
    return CKPT_TRY(zi_checkpoint_reader_open(folder, reader));
}

/* ---- amounts ---- */

bool ckpt_has_role(const zi_checkpoint_tensor *tensor, int role)
{
    return zero_dtype_bytes(tensor->role[role].dtype) != 0;
}

uint64_t ckpt_tensor_bytes(const zi_checkpoint_tensor *tensor, int role)
{
    return zi_saved_bytes(tensor, (zero_role)role, tensor->count);
}

uint64_t ckpt_bytes(const zi_checkpoint_map *map, const zi_manifest *manifest)
{
    uint64_t bytes = manifest != NULL ? map->piece_count * sizeof(uint64_t) : 0;
    for (uint32_t i = 0; i < map->file_count; i++) {
        bytes += map->files[i].bytes;
    }
    return bytes;
}

uint32_t ckpt_ranks(const zi_manifest *manifest)
{
    return manifest->world * (manifest->map.part_count > 1 ? manifest->map.part_count : 1);
}

uint64_t ckpt_parameters(const zi_checkpoint_map *map)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < map->tensor_count; i++) {
        count += map->tensors[i].count;
    }
    return count;
}

/* ---- texts ---- */

const char *ckpt_name(const char *name, char text[CKPT_NAME_BYTES])
{
    size_t length = 0;
    for (; name[length] != '\0' && length < CKPT_NAME_BYTES - 1; length++) {
        const unsigned char letter = (unsigned char)name[length];
        text[length] = letter < ' ' || letter == 0x7f ? '?' : name[length];
    }
    text[length] = '\0';
    if (name[length] != '\0') {
        text[length - 2] = '.';
        text[length - 1] = '.';
    }
    return text;
}

const char *ckpt_shape(const zi_checkpoint_tensor *tensor, char text[CKPT_SHAPE_BYTES])
{
    size_t used = 0;
    (void)snprintf(text, CKPT_SHAPE_BYTES, "scalar");
    for (uint32_t i = 0; i < tensor->dims; i++) {
        used += (size_t)snprintf(text + used, CKPT_SHAPE_BYTES - used, "%s%" PRIu64,
                                 i == 0 ? "" : "x", tensor->shape[i]);
    }
    return text;
}

const char *ckpt_amount(uint64_t bytes, char text[CKPT_TEXT_BYTES])
{
    static const char *const units[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
    double amount = (double)bytes / 1e3;
    size_t unit = 0;
    if (bytes < 1000) {
        (void)snprintf(text, CKPT_TEXT_BYTES, "%" PRIu64 " B", bytes);
        return text;
    }
    for (; amount >= 999.5 && unit < 5; unit++) {
        amount /= 1e3;
    }
    (void)snprintf(text, CKPT_TEXT_BYTES, amount < 99.95 ? "%.1f %s" : "%.0f %s", amount,
                   units[unit]);
    return text;
}

const char *ckpt_hash(uint64_t hash, char text[CKPT_TEXT_BYTES])
{
    (void)snprintf(text, CKPT_TEXT_BYTES, "%016" PRIx64, hash);
    return text;
}

/* ---- output ---- */

bool ckpt_has_text(const ckpt_line *line)
{
    return line->json_path == NULL || strcmp(line->json_path, "-") != 0;
}

int ckpt_put_json(const ckpt_line *line, json_t *json)
{
    if (line->json_path == NULL) {
        json_decref(json);
        return 0;
    }
    return out_json(json, line->json_path);
}

int ckpt_report(const ckpt_line *line, const char *module, json_t *json)
{
    const int failed = ckpt_has_text(line) && script_print(module, NULL, json_incref(json)) != 0;
    return ckpt_put_json(line, json) || failed;
}

int ckpt_flush(void)
{
    return fflush(stdout) == 0 ? 0 : bench_fail("stdout cannot be written: %s", strerror(errno));
}
