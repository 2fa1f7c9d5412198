/* The index that an export of several files gets: which tensor is in which file, as the files'
 * headers say. Real exports have several files from 4 GiB on. */
#include "gpt2_weights.h"
#include "harness.h"

#include <sys/stat.h>
#include <unistd.h>

static const gpt2_config config = {.layers = 12, .heads = 1, .width = 4, .seq = 4, .vocab = 4};
static char folder[64];
static char index_path[96];

static const char *part_path(int part)
{
    return test_text("%s/model-0000%d-of-00002.safetensors", folder, part);
}

/* Tensors [first, end) of the model; only names matter, and no bytes follow. */
static void write_part(int part, uint32_t first, uint32_t end)
{
    char text[16384] = "{\"__metadata__\":{\"format\":\"pt\"}";
    size_t used = strlen(text);
    for (uint32_t i = first; i < end; i++) {
        gpt2_tensor tensor;
        gpt2_tensor_describe(&config, i, &tensor);
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 ",\"%s\":{\"dtype\":\"F32\",\"shape\":[0],"
                                 "\"data_offsets\":[0,0]}",
                                 tensor.name);
    }
    used += (size_t)snprintf(text + used, sizeof text - used, "}");
    CHECK(used < sizeof text);
    const uint64_t length = used;
    FILE *file = fopen(part_path(part), "w");
    CHECK(file != NULL);
    CHECK_EQ(fwrite(&length, sizeof length, 1, file), 1);
    CHECK_EQ(fwrite(text, 1, used, file), used);
    CHECK_EQ(fclose(file), 0);
}

static void begin(void)
{
    snprintf(folder, sizeof folder, "/tmp/gpt2-index-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    snprintf(index_path, sizeof index_path, "%s/model.safetensors.index.json", folder);
}

static void end(void)
{
    (void)unlink(part_path(1));
    (void)unlink(part_path(2));
    (void)unlink(index_path);
    CHECK_EQ(rmdir(folder), 0);
}

TEST(an_index_names_the_file_of_every_tensor)
{
    const uint32_t count = gpt2_tensor_count(&config);
    static char text[32768];
    gpt2_error error = {""};
    begin();
    write_part(1, 0, count - 20);
    write_part(2, count - 20, count);
    if (!gpt2_weights_index(&config, folder, 2, &error)) {
        TEST_FAIL("%s", error.text);
    }
    FILE *file = fopen(index_path, "r");
    CHECK(file != NULL);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    CHECK_EQ(fclose(file), 0);
    const char *at = text;
    for (uint32_t i = 0; i < count; i++) {
        gpt2_tensor tensor;
        gpt2_tensor_describe(&config, i, &tensor);
        const char *line = test_text("%s\n    \"%s\": \"model-0000%d-of-00002.safetensors\"",
                                     i == 0 ? "{" : ",", tensor.name, i < count - 20 ? 1 : 2);
        at = strstr(at, line);
        if (at == NULL) {
            TEST_FAIL("no%s in %s", line, text);
        }
        at += strlen(line);
    }
    CHECK_EQ(strcmp(at, "\n  }\n}\n"), 0);
    end();
}

TEST(a_tensor_in_no_file_is_an_error)
{
    const uint32_t count = gpt2_tensor_count(&config);
    gpt2_error error = {""};
    begin();
    write_part(1, 0, count - 20);
    write_part(2, count - 19, count);
    CHECK(!gpt2_weights_index(&config, folder, 2, &error));
    CHECK(strstr(error.text, "have 147 of the 148 tensors") != NULL);
    CHECK_EQ(unlink(part_path(2)), 0);
    CHECK(!gpt2_weights_index(&config, folder, 2, &error));
    CHECK(strstr(error.text, "have 128 of the 148 tensors") != NULL);
    end();
}
