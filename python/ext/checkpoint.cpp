/* Checkpoints of an engine. */
#include "engine.h"
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

static const char *text_of(const std::optional<std::string> &text)
{
    return text ? text->c_str() : nullptr;
}

static void save_begin(Engine &self, const std::string &directory, std::optional<std::string> name,
                       bool replace, bool refuse_busy, uint32_t keep, bool params_only,
                       uint64_t data_position, uint64_t random_seed, uint64_t random_position,
                       nb::bytes user, bool reflink)
{
    zero_save_options options = zero_save_options_init();
    options.directory = directory.c_str();
    options.name = text_of(name);
    options.replace = replace;
    options.refuse_busy = refuse_busy;
    options.keep = keep;
    options.params_only = params_only;
    options.user.data_position = data_position;
    options.user.random_seed = random_seed;
    options.user.random_position = random_position;
    options.user.bytes = user.size() != 0 ? user.c_str() : nullptr;
    options.user.bytes_count = user.size();
    options.reflink = reflink;
    on_engine(self, [&](zero_engine *engine) { return zero_save_begin(engine, &options); });
}

static nb::dict save_poll(Engine &self)
{
    zero_save_progress now = zero_save_progress_init();
    check(zero_save_poll(self.get().engine, &now));
    nb::dict all;
    all["active"] = now.active != 0;
    all["written"] = now.written != 0;
    all["bytes"] = now.bytes;
    all["staged_bytes"] = now.staged_bytes;
    all["written_bytes"] = now.written_bytes;
    all["shared_bytes"] = now.shared_bytes;
    return all;
}

static nb::dict report_of(const zero_load_report &report, const std::string &user)
{
    nb::dict all;
    all["step"] = report.step;
    all["read_bytes"] = report.read_bytes;
    all["world"] = report.world;
    all["loaded"] = report.loaded;
    all["missing"] = report.missing;
    all["unexpected"] = report.unexpected;
    all["mismatching"] = report.mismatching;
    all["data_position"] = report.data_position;
    all["random_seed"] = report.random_seed;
    all["random_position"] = report.random_position;
    all["user"] = nb::bytes(user.data(), std::min<size_t>(user.size(), report.user_bytes_count));
    all["tensors"] = nb::str(report.list);
    all["folder"] = nb::str(report.folder);
    all["passed_over"] = nb::str(report.passed_over);
    all["overflowed"] = report.overflowed;
    return all;
}

static nb::dict load(Engine &self, const std::string &path, std::optional<std::string> name,
                     std::optional<std::string> prefix, bool params_only, bool partial,
                     bool reflink, bool refuse_overflow, bool if_any)
{
    zero_load_options options = zero_load_options_init();
    options.path = path.c_str();
    options.name = text_of(name);
    options.prefix = text_of(prefix);
    options.params_only = params_only;
    options.partial = partial;
    options.reflink = reflink;
    options.refuse_overflow = refuse_overflow;
    options.if_any = if_any;
    std::string user(size_t{1} << 20, '\0'); // the most that a checkpoint has
    zero_load_report report = zero_load_report_init();
    report.user_bytes = user.data();
    report.user_room = user.size();
    on_engine(self, [&](zero_engine *engine) { return zero_load(engine, &options, &report); });
    return report_of(report, user);
}

void checkpoint_register(nb::class_<Engine> &engine)
{
    engine
        .def("save_begin", save_begin, nb::arg("directory"), nb::arg("name").none(),
             nb::arg("replace"), nb::arg("refuse_busy"), nb::arg("keep"), nb::arg("params_only"),
             nb::arg("data_position"), nb::arg("random_seed"), nb::arg("random_position"),
             nb::arg("user"), nb::arg("reflink"))
        .def("save_poll", save_poll)
        .def("save_end", [](Engine &self) { on_engine(self, zero_save_end); })
        .def("load", load, nb::arg("path"), nb::arg("name").none(), nb::arg("prefix").none(),
             nb::arg("params_only"), nb::arg("partial"), nb::arg("reflink"),
             nb::arg("refuse_overflow"), nb::arg("if_any"));
}
