"""Small trees for the self-test: for each check, one that is clean and several that are not."""

TABLE = (
    "| folder | owns | may include |\n|---|---|---|\n"
    "| `include/zero` | api | - |\n| `src/core` | base | - |\n"
    "| `src/layout` | sums | core |\n| `src/engine` | all | everything |\n"
    "| `tools` | program | - |\n| `tools/inner.c` | inside | core |\n\nend\n"
)


def _arrows(path, include):
    files = ["src/core/a.h", "src/layout/b.h", "src/engine/c.h", "include/zero/z.h", "tools/t.h"]
    tree = {name: "/* here */\n" for name in files}
    tree["ARCHITECTURE.md"] = TABLE
    tree[path] = f"#include {include}\n"
    return tree


def _function(lines):
    return {"src/core/a.c": "int f(int a)\n{\n" + "    a++;\n" * (lines - 3) + "}\n"}


def _readme(step):
    hello = "int f(void)\n{\n    zero_micro_begin(e);\n    work();\n    zero_step(e);\n}\n"
    return {
        "examples/01_hello/hello.c": hello,
        "README.md": f"text\n```c\nzero_micro_begin(e);\n{step}();\nzero_step(e);\n```\n",
    }



def _document(line):
    return {
        "examples/x/x.c": "int f(void)\n{\n    work();\n\n    rest();\n}\n",
        "docs/x.md": f"text\n```c\nwork();\n\n{line}\n```\n",
    }


def _states(row):
    cells = "CELL(FETCH, GATHERING, GATHER_AWAIT),\n  CELL(EVICT, IN_USE, REFUSE)"
    return {
        "src/stage3/unit_state.c": "= {\n [ZI_UNIT_IN_USE] = {" + cells + "},\n};\n",
        "ARCHITECTURE.md": f"| in use | {row} |\n",
    }


def _engine(*rows):
    lists = (
        '#define ZI_ENGINE_STATES(X) \\\n X(IDLE, "idle", "is idle", ANY) \\\n'
        ' X(OVER, "over", "is over", ANY)\n\n'
        '#define ZI_ENGINE_CALLS(X) \\\n X(GO, "go", "zero_go, zero_run", ZI_NEEDS_GRAPH) \\\n'
        ' X(ASK, "ask", "zero_ask", 0)\n\n'
    )
    code = (
        '= {\n ROW(IDLE, "no", MOVE(GO, OVER),\n STAY(ASK), NO(X, "x")),\n'
        ' ROW(OVER, "no", {.verdict = REFUSES}),\n};\n'
    )
    shown = "".join(f"| {row} |\n" for row in rows)
    return {
        "src/engine/engine_state.h": lists,
        "src/engine/engine_state.c": code,
        "ARCHITECTURE.md": shown,
    }


_ENGINE_ROWS = (
    "idle | go: over | ask",
    "over | - | -",
    "go | zero_go, zero_run | a step was captured",
    "ask | zero_ask | -",
)


def _engine_call(name):
    declared = f"ZERO_API zero_status {name}(const zero_engine *engine, int x);\n"
    return _engine() | {"include/zero/a.h": declared}


def _cycle(other, folder="core"):
    """A file that uses zi_b, and one that may use its zi_a."""
    return {
        f"src/{folder}/a.c": "int zi_a(void)\n{\n    return zi_b();\n}\n",
        f"src/{folder}/b.c": other,
    }


def _composed(names):
    """A test whose meson.build puts its name together."""
    build = f"foreach name : [{names}]\n  executable('test_' + name, 'test_' + name + '.c')\n"
    return {"tests/unit/test_a.c": "", "tests/unit/meson.build": build}


# check: (clean trees, trees in which it must fire)
_LISTED = "| [zero/a.h](../include/zero/a.h) | what | why |\n"

FIXTURES = {
    "include_arrows": (
        [
            _arrows("src/layout/x.c", '"core/a.h"'),
            _arrows("src/engine/x.c", '"layout/b.h"'),
            _arrows("src/core/x.c", '"zero/z.h"'),
            _arrows("src/core/x.c", "<stdio.h>"),
            _arrows("tools/inner.c", '"core/a.h"'),
            _arrows("tools/inner.c", '"t.h"'),
            _arrows("tools/x.c", '"made.h"') | {"tools/meson.build": "output: 'made.h'\n"},
        ],
        [
            _arrows("src/core/x.c", '"layout/b.h"'),
            _arrows("src/layout/x.c", '"engine/c.h"'),
            _arrows("src/layout/x.c", "<engine/c.h>"),
            _arrows("src/core/x.c", '"core/gone.h"'),
            _arrows("tools/x.c", '"core/a.h"'),
            _arrows("src/stranger/x.c", "<stdio.h>"),
            {"ARCHITECTURE.md": "no table\n"},
        ],
    ),
    "function_length": (
        [_function(70), {"src/core/a.c": "int table[] = {\n" + "    1,\n" * 90 + "};\n"}],
        [_function(71), {"tests/t.c": "TEST(x)\n{\n" + "    y();\n" * 70 + "}\n"}],
    ),
    "file_length": ([{"src/a.c": "x\n" * 800}], [{"src/a.c": "x\n" * 801}]),
    "line_length": (
        [{"src/a.c": "x" * 100 + "\n", "README.md": "y" * 300 + "\n"}],
        [{"src/a.c": "x" * 101 + "\n"}, {"scripts/run": "x" * 101 + "\n"}],
    ),
    "banned_calls": (
        [
            {"src/core/memory.c": "p = malloc(1); free(p);\n"},
            {"src/comm/a.c": '/* printf(x) */ snprintf(t, 1, "exit(1)"); zi_free(p);\n'},
            {"src/comm/a.c": "ops->abort(comm); _Static_assert(1, text); zi_assert(1);\n"},
            {"tools/a.c": "printf(text); exit(1);\n"},
        ],
        [
            {"src/comm/a.c": f"{call}(x);\n"}
            for call in ("malloc", "free", "printf", "sprintf", "strcpy", "atoi", "assert", "exit")
        ]
        + [{"src/core/a.c": "getenv (name);\n"}, {"src/core/a.c": "fprintf(stderr, text);\n"}],
    ),
    "unique_names": (
        [
            {"src/core/a.c": "", "src/core/a.h": "", "src/comm/meson.build": "", "meson.build": ""},
            {"include/zero/log.h": "", "src/core/log.h": ""},
        ],
        [{"src/core/a.c": "", "tests/unit/a.c": ""}],
    ),
    "stage_in_one_file": (
        [{"src/layout/sharding.c": "x = ZERO_STAGE_3;\n", "tests/a.c": "ZERO_STAGE_1\n"}],
        [{"src/engine/step.c": "if (stage == ZERO_STAGE_2) {\n}\n"}],
    ),
    "capabilities_not_names": (
        [
            {"src/engine/backend.c": "x = ZERO_DEVICE_CUDA;\n", "src/comm/world.c": "/* NCCL */\n"},
            {"src/layout/layout.c": "if (!can.host_memory) {\n}\n", "src/engine/a.md": "CUDA\n"},
        ],
        [
            {"src/layout/layout.c": "if (device == ZERO_DEVICE_CUDA) {\n}\n"},
            {"src/engine/a.c": "/* Memory that NCCL knows. */\n"},
            {"src/engine/a.c": '#include "comm/nccl/nccl_memory.h"\n'},
            {"src/stage3/a.c": 'ZI_FAIL(x, "see options.nccl_memory");\n'},
            {"src/comm/comm.h": "struct zi_nccl_group;\n"},
        ],
    ),
    "documented_api": (
        [
            {"include/zero/a.h": "/** Does. */\nZERO_API int f(void);\n"},
            {"include/zero/a.h": "/** Does\n * much. */\nZERO_API int f(void);\n"},
        ],
        [
            {"include/zero/a.h": "#define X\n\nZERO_API int f(void);\n"},
            {"include/zero/a.h": "/* plain */\nZERO_API int f(void);\n"},
            {"include/zero/a.h": "/** one */\nZERO_API int f(void);\nZERO_API int g(void);\n"},
        ],
    ),
    "unfinished_words": (
        [{"src/a.c": "/* all done */\n"}],
        [{"src/a.c": "/* TO" + "DO later */\n"}, {"docs/a.md": "FIX" + "ME\n"}],
    ),
    "replaced_words": (
        [
            {"src/a.c": "int spark; /* an extent in the I/O window */\n"},
            {"CHANGELOG.md": "- announce\n"},
            {"docs/a.md": "see [022](decisions/022-announced.md)\n"},
        ],
        [
            {"src/a.c": "/* put it on the shelf */\n"},
            {"src/a.c": "int tray_count;\n"},
            {"docs/a.md": "Announced steps\n"},
            {"tools/a.h": "int a_draft;\n"},
        ],
    ),
    "comment_openings": (
        [
            {"src/a.c": "/* The place of a. What is there stays. */\nint a; /* what folds */\n"},
            {"src/a.c": 'say("/* What */ // Where");\n/* Whatever is given.\n * Where it is. */\n'},
            {"docs/a.md": "/* What */\n"},
        ],
        [
            {"src/a.c": "/* What a has. */\nint a;\n"},
            {"include/zero/a.h": "/** Where a is. */\nint a; /**< of b */\n"},
            {"include/zero/a.h": "/** A. */\nint a; /**< Where it is. */\n"},
            {"tests/a.cu": "int a; // Whether it is.\n"},
            {"tools/a.h": "/*\n * Whether it is. */\n"},
        ],
    ),
    "blanks": (
        [{"src/a.c": "int a;\n\nint b;\n"}],
        [{"src/a.c": "int a; \n"}, {"src/a.c": "\tint a;\n"}],
    ),
    "final_newline": (
        [{"src/a.c": "int a;\n"}],
        [{"src/a.c": "int a;"}, {"src/a.c": "int a;\n\n"}],
    ),
    "machine_paths": (
        [{"docs/a.md": "in homework/x and $HOME/work/, see https://a.b/c\n"}],
        [{"docs/a.md": "cd /wo" + "rk/main\n"}, {"src/a.c": '"/ho' + 'me/someone/x"\n'}],
    ),
    "clang_format": (
        [{"src/a.c": "int f(int a)\n{\n    return a;\n}\n"}],
        [{"src/a.c": "int f(int a) {\n  return a; }\n"}],
    ),
    "dead_files": (
        [
            {
                "src/core/a.c": '#include "core/a.h"\n',
                "src/core/a.h": "",
                "src/core/meson.build": "library(['a.c'])\n",
            },
            {"src/comm/x/a.c": "", "src/comm/meson.build": "library(['x/a.c'])\n"},
            _composed("'b', 'a'"),
        ],
        [
            _composed("'b'"),
            {"src/core/a.c": "", "src/core/meson.build": "library(['b.c'])\n"},
            {"src/core/a.h": ""},
        ],
    ),
    "readme_snippet": (
        [_readme("work")],
        [_readme("other"), {"README.md": "```c\n```\n"}],
    ),
    "decisions_index": (
        [
            {
                "docs/decisions/001-a.md": "# 001: a choice\n",
                "docs/decisions.md": "- [001](decisions/001-a.md) A choice (superseded by 002)\n",
            }
        ],
        [
            {"docs/decisions/001-a.md": "# 001: a choice\n"},
            {"docs/decisions.md": "- [001](decisions/001-a.md) A choice\n"},
            {
                "docs/decisions/001-a.md": "# 001: a choice\n",
                "docs/decisions.md": "- [001](decisions/001-a.md) Another\n",
            },
        ],
    ),
    "guides_readers": (
        [{"docs/x.md": "# X\n\n*For all. A how-to.*\n"}, {"docs/decisions/001-a.md": "# 001: a\n"}],
        [{"docs/x.md": "# X\n\nIt is so.\n"}, {"docs/x.md": "# X\n"}],
    ),
    "doc_snippets": (
        [_document("rest();"), {"docs/x.md": "```sh\nwork\n```\n"}],
        [
            _document("other();"),
            _document("    rest();"),
            {"docs/x.md": "```cpp\nrest();\n```\n"},
            {"README.md": "```python\nrest()\n```\n", "examples/a.py": "work()\n"},
        ],
    ),
    "state_table": (
        [_states("gathering: gather, await | refused")],
        [_states("gathering: gather | refused"), _states("refused"), {"a.c": ""}],
    ),
    "engine_table": (
        [_engine(*_ENGINE_ROWS)],
        [_engine(*_ENGINE_ROWS[:3]), _engine(*_ENGINE_ROWS[1:]), {"ARCHITECTURE.md": ""}],
    ),
    "engine_calls": (
        [_engine_call("zero_run")],
        [_engine_call("zero_walk"), _engine_call("zero_g")],
    ),
    "experimental_headers": (
        [
            {"include/zero/a.h": "/** Experimental: x */\n", "docs/stability.md": _LISTED},
            {"include/zero/a.h": "/** x */\n#ifndef A\n"},
        ],
        [
            {"include/zero/a.h": "/** x */\n#ifndef A\n", "docs/stability.md": _LISTED},
            {"include/zero/a.h": "/** Experimental: x. */\n#ifndef A\n"},
        ],
    ),
    "statics_of_one_file": (
        [
            {"src/core/a.c": "static int a_go(void)\n{\n}\n", "src/core/b.c": "int a_go(void);\n"},
            {"src/core/a.c": "static int go(void);\nstatic int go(void)\n{\n}\n"},
        ],
        [
            {
                "src/core/a.c": "static int go(void)\n{\n}\n",
                "src/comm/b.c": "static inline const char *go(int a,\n    int b)\n{\n}\n",
            },
        ],
    ),
    "file_cycles": (
        [
            _cycle("int zi_b(void)\n{\n    return 0;\n}\n"),
            _cycle("/* zi_a() */\nstatic int zi_a(void)\n{\n    return 0;\n}\n"),
            _cycle("int zi_a(void);\n") | {"src/core/a.h": "int zi_a(void);\n"},
            {"src/core/b.c": "int zi_b(void)\n{\n    return zi_a();\n}\n"} | _cycle("", "x"),
        ],
        [
            _cycle("int zi_b(void)\n{\n    return zi_a();\n}\n"),
            _cycle("int zi_b(void)\n{\n    return zi_c();\n}\n")
            | {"src/core/c.c": "int (*const zi_c)(void) = zi_a;\nint zi_c(void)\n{\n}\n"},
            _cycle("const int zi_b = {.a = zi_a};\n"),
            _cycle("")
            | {"src/core/b.h": "static inline int zi_b(void)\n{\n    return zi_a();\n}\n"},
        ],
    ),
    "comment_at_top": (
        [{"src/core/a.c": "/* Owns a. */\nint a;\n"}],
        [{"src/core/a.c": "int a;\n"}],
    ),
}
