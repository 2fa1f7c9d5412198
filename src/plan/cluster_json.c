/* Owns reading a cluster's file. Invariant: a key that no field has is refused, so that none is
 * misspelt without a word. */
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "core/sized.h"
#include "plan/cluster.h"
#include "plan/json.h"

static const zero_cluster_field *find_field(const char *name)
{
    const zero_cluster_field *field = NULL;
    for (uint32_t i = 0; (field = zero_cluster_field_at(i)) != NULL; i++) {
        if (strcmp(field->name, name) == 0) {
            return field;
        }
    }
    return NULL;
}

static zero_status read_field(const zi_json *json, const char *key, const json_t *value,
                              zero_cluster *cluster)
{
    const zero_cluster_field *field = find_field(key);
    if (field == NULL) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "%s has the key \"%.64s\", which no cluster has; see zero/cluster.h", json->path,
                key);
    }
    const double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= field->low && number <= field->high) ||
        (field->is_real == 0 && floor(number) < number)) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "\"%s\" of %s is not a %snumber in [%g, %g]", key,
                json->path, field->is_real != 0 ? "" : "whole ", field->low, field->high);
    }
    zi_cluster_set(cluster, field, number);
    return ZERO_OK;
}

static zero_status read_cluster(const zi_json *json, zero_cluster *cluster)
{
    const char *name = NULL;
    const char *key = NULL;
    json_t *value = NULL;
    ZI_TRY(zi_json_text(json, (zi_json_key){.name = "preset"}, &name));
    if (name != NULL) {
        ZI_TRY(zero_cluster_preset(name, cluster));
    }
    json_object_foreach(json->root, key, value)
    {
        if (strcmp(key, "preset") != 0) {
            ZI_TRY(read_field(json, key, value, cluster));
        }
    }
    return zero_cluster_check(cluster);
}

zero_status zero_cluster_read(const char *path, zero_cluster *cluster)
{
    zi_json json;
    zero_cluster made = {.struct_bytes = sizeof made};
    zero_status status = zi_json_open(&json, path);
    if (status == ZERO_OK) {
        status = read_cluster(&json, &made);
    }
    zi_json_close(&json);
    return status == ZERO_OK ? ZI_SIZED_OUT(zero_cluster, cluster, &made) : status;
}
