/* Owns reading a cluster's file. Invariant: a key that no field has is refused, so that none is
 * misspelt without a word. */
#include <string.h>

#include "core/error.h"
#include "core/sized.h"
#include "format/json.h"
#include "plan/cluster.h"

static zero_status read_field(const zi_json *json, const char *key, zero_cluster *cluster)
{
    const zero_cluster_field *field = NULL;
    for (uint32_t i = 0; (field = zero_cluster_field_at(i)) != NULL; i++) {
        if (strcmp(field->name, key) == 0) {
            const zi_json_key asked = {key, true, field->low, field->high};
            unsigned char *at = (unsigned char *)cluster + field->offset;
            return zi_json_number(json, asked, (uint64_t *)(void *)at);
        }
    }
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
            "%s has the key \"%.64s\", which no cluster has; see zero/cluster.h", json->path, key);
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
            ZI_TRY(read_field(json, key, cluster));
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
