"""Made-up kernels for the self-test: for each check arguments that are clean and others."""

from collections import Counter

from kernel_listing import Kernel, read_ptx, read_resources, read_sass

# As gcc's names are: a type that comes again is S0_.
PTX = """
.visible .entry _Z13update_kernelIL10zero_dtype1ELS0_4ELS0_1ELi1EL14zero_optimizer1EEvi(
\t.param .align 8 .b8 args[88]
)
.maxntid 256
{
\tld.global.v4.u32 \t{%r1, %r2, %r3, %r4}, [%rd1];
\t@%p1 bra \t$L__BB0_2;
\tsqrt.rn.f32 \t%f1, %f2;
\tdiv.rn.f32 \t%f3, %f1, %f4;
\tmul.rn.f32 \t%f5, %f3, %f4;
\t@!%p2 fma.rn.f32 \t%f6, %f3, %f4, %f5;
\tst.global.v4.f32 \t[%rd1], {%f1, %f3, %f5, %f6};
$L__BB0_2:
\tret;
}
"""
LANE = "{ a = fmaf(sqrtf(b), b / c, c); }"
QUICK = '{ asm("rcp.approx.ftz.f32"); a = fmaf(fmaf(b, c, d), c, d); }'

SASS = """
arch = sm_90
\t\tFunction : _Z11cast_kernelIL10zero_dtype1EL10zero_dtype2EEv12zi_cast_args
        /*0000*/                   LDG.E.EF.64 R2, desc[UR4][R2.64] ;   /* 0x0 */
                                                                        /* 0x1 */
        /*0010*/              @!P0 FADD R4, R2, R3 ;                    /* 0x0 */
        /*0020*/              @UP0 STG.E.128 desc[UR4][R2.64], R4 ;     /* 0x0 */
"""

RESOURCES = """
arch = sm_80
 Function _Z13decide_kernel13zi_decide_job:
  REG:80 STACK:176 SHARED:0 LOCAL:0 CONSTANT[0]:392
 Function _Z11fold_kernelIL10zero_dtype1EL10zero_dtype2EEv12zi_fold_args:
  REG:64 STACK:%d SHARED:0 LOCAL:%d CONSTANT[0]:392
"""

LISTED = "ELF file 1: a.sm_80.cubin\nPTX file 1: a.sm_90.ptx\nELF file 2: a.sm_90.cubin\n"


def _ptx(family, *ops, types=()):
    return [Kernel(family, types, "ptx", Counter(ops))]


def _sass(family, *ops, types=(), target="sm_90"):
    return [Kernel(family, types, target, Counter(ops))]


def _changed(text, before, after):
    assert before in text
    return text.replace(before, after)


def _complete():
    names = ("update", "measure", "pack", "merge")
    names += ("square_sum", "fold_squares", "decide", "fold", "cast", "encode", "decode")
    names += ("packed_fold",)
    families = [f"{name}_kernel" for name in names]
    ptx = [kernel for family in families for kernel in _ptx(family, types=(1, 2))]
    sass = [kernel for family in families for kernel in _sass(family, types=(1, 2))]
    return (
        [(ptx, [], ["90"]), (ptx, [sass, sass], ["90"])],
        [
            (ptx[1:], [], ["90"]),
            ([], [], ["90"]),
            (ptx, [sass, sass[1:]], ["90"]),
            (ptx, [sass], ["80", "90"]),
            (ptx + _ptx("cast_kernel", types=(2, 1)), [sass], ["90"]),
        ],
    )


def _rounding():
    bad = ["mul.f32", "add.ftz.f32", "div.full.f32", "div.approx.f32", "fma.rz.f32", "mad.f32"]
    bad += ["add.rn.ftz.f32", "setp.lt.ftz.f32", "rsqrt.approx.f32", "fma.rn.f16x2"]
    bad += ["cvt.rn.bf16.f32", "cvt.rz.bf16x2.f32", "rsqrt.approx.ftz.f32", "cvt.rz.f32.u32"]
    clean = ["setp.lt.f32", "ld.global.cs.v2.f32", "cvt.f64.f32", "fma.rn.f64", "add.s64"]
    clean += ["max.f32", "min.f32", "cvt.rn.bf16x2.f32", "cvt.rn.f32.u32"]
    seeds = ["rsqrt.approx.ftz.f32", "rcp.approx.ftz.f32"]
    return (
        [(read_ptx(PTX),), (_ptx("x_kernel", *clean),), (_ptx("update_kernel", *seeds),)],
        [(_ptx("x_kernel", op),) for op in bad]
        + [(read_ptx(_changed(PTX, "@!%p2 fma.rn", "@!%p2 fma.rz")),)],
    )


def _fusion():
    lanes = {"update_kernel": [LANE], "update_kernel sgd": ["{ a = fmaf(b, c, d); }"]}
    sgd = (1, 2, 1, 1, 4)
    twice = ["fma.rn.f32", "sqrt.rn.f32", "div.rn.f32"] * 2
    quick = {"update_kernel": [LANE, QUICK]}
    both = [*twice, *["fma.rn.f32", "fma.rn.f32", "rcp.approx.ftz.f32"] * 3]
    codes = (0, 2, 7, 6, 1)
    coded = {"update_kernel": [(2, LANE), (1, QUICK)]}
    once = [*twice, "fma.rn.f32", "fma.rn.f32", "rcp.approx.ftz.f32"]
    blocks = {"encode_kernel int8": ["{ a = b / c; }", "{ a = fmaf(b, c, d); }"]}
    encoded = ["div.rn.f32", *["fma.rn.f32"] * 4]
    coded["packed_fold_kernel of codes"] = [(3, "{ a = b / c; }"), (2, "{ a = fmaf(b, c, d); }")]
    packed = [*["div.rn.f32"] * 3, *["fma.rn.f32"] * 2]
    return (
        [
            (read_ptx(PTX), lanes, coded),
            (_ptx("update_kernel", *twice), lanes, coded),
            (_ptx("update_kernel", *both), quick, coded),
            (_ptx("cast_kernel", "add.rn.f32", "sqrt.rn.f64"), lanes, coded),
            (_ptx("update_kernel", *["fma.rn.f32"] * 3, types=sgd), lanes, coded),
            (_ptx("update_kernel", *once, types=codes), lanes, coded),
            (_ptx("encode_kernel", *encoded, types=(11, 1)), blocks, coded),
            (_ptx("encode_kernel", "mul.rn.f32", types=(10, 1)), blocks, coded),
            (_ptx("packed_fold_kernel", *packed, types=(12, 11)), blocks, coded),
        ],
        [
            (read_ptx(_changed(PTX, "mul.rn.f32", "fma.rn.f32")), lanes, coded),
            (read_ptx(_changed(PTX, "fma.rn.f32", "mul.rn.f32")), lanes, coded),
            (_ptx("update_kernel", *twice, "fma.rn.f64"), lanes, coded),
            (_ptx("update_kernel", "add.rn.f32"), lanes, coded),
            (_ptx("update_kernel", *twice), quick, coded),
            (_ptx("update_kernel", *both, "fma.rn.f32"), quick, coded),
            (_ptx("update_kernel", *both, "rcp.approx.ftz.f32"), quick, coded),
            (_ptx("cast_kernel", "fma.rn.f32"), lanes, coded),
            (_ptx("update_kernel", "fma.rn.f32", "div.rn.f32", types=sgd), lanes, coded),
            (_ptx("update_kernel", *once, "fma.rn.f32", types=codes), lanes, coded),
            (_ptx("update_kernel", *once[1:], types=codes), lanes, coded),
            (_ptx("encode_kernel", *encoded[1:], types=(11, 1)), blocks, coded),
            (_ptx("encode_kernel", *encoded, types=(10, 1)), blocks, coded),
            (_ptx("packed_fold_kernel", *packed[1:], types=(12, 11)), blocks, coded),
            (_ptx("packed_fold_kernel", *packed, packed[-1], types=(12, 11)), blocks, coded),
        ],
    )


def _machine_arithmetic():
    cast = _ptx("cast_kernel", "add.rn.f32", types=(1, 2))
    root = _ptx("cast_kernel", "sqrt.rn.f32", types=(1, 2))
    fused = _ptx("cast_kernel", "fma.rn.f64", types=(1, 2))
    add = "FADD R4"
    return (
        [(read_sass(SASS), cast), (read_sass(_changed(SASS, add, "FFMA R4")), root)]
        + [(read_sass(_changed(SASS, add, "MUFU.RSQ R4")), root)]
        + [(read_sass(_changed(SASS, add, "DFMA R4")), fused)],
        [
            (read_sass(_changed(SASS, add, f"{op} R4")), ptx)
            for op, ptx in (
                ("FFMA", cast),
                ("FFMA.RM", fused),
                ("DFMA", cast),
                ("FADD.FTZ", cast),
                ("MUFU.RCP", fused),
            )
        ]
        + [(read_sass(SASS), _ptx("cast_kernel", types=(2, 1)))],
    )


def _products():
    ptx = _ptx("x_kernel", "mul.rn.f32", "mul.rn.f32")
    return (
        [
            (_sass("x_kernel", "FMUL", "FMUL", "FADD"), ptx, "sm_90"),
            (_sass("x_kernel", "FMUL2"), ptx, "sm_90"),
            (_sass("x_kernel", "FFMA", target="sm_80"), ptx, "sm_90"),
        ],
        [
            (_sass("x_kernel", "FMUL", "FFMA"), ptx, "sm_90"),
            (_sass("x_kernel", "FMUL.FTZ", "FMUL.FTZ"), ptx, "sm_90"),
            (_sass("x_kernel", "FMUL"), _ptx("x_kernel", "mul.rn.f64"), "sm_90"),
        ],
    )


def _wide_accesses():
    update = (1, 2, 2, 1, 1)  # fp32 gradients and master, bf16 parameters and moments
    codes = (0, 2, 7, 6, 1)  # any gradients, bf16 parameters with remainders of 8 bits, codes
    loads = ["ld.global.cs.v4.u32", "ld.global.v2.u32"]
    stores = ["st.global.v4.f32", "st.global.v2.u32"]
    return (
        [
            (read_sass(SASS),),
            (read_ptx(PTX),),
            (_ptx("update_kernel", *loads, *stores, types=update),),
            (_ptx("update_kernel", *loads, stores[1], types=codes),),
            (_ptx("square_sum_kernel", "ld.global.v4.u32", types=(2,)),),
            (_ptx("decide_kernel", "ld.global.f64"),),
        ],
        [
            (read_sass(_changed(SASS, "STG.E.128", "STG.E.64")),),
            (read_sass(_changed(SASS, "LDG.E.EF.64", "LDG.E")),),
            (read_ptx(_changed(PTX, "ld.global.v4.u32", "ld.global.v2.u32")),),
            (_ptx("update_kernel", *loads, stores[0], types=update),),
            (_ptx("update_kernel", *loads, stores[1], types=update),),
            (_ptx("update_kernel", loads[1], stores[1], types=codes),),
            (_ptx("update_kernel", *loads, types=codes),),
            (_ptx("square_sum_kernel", "ld.global.v2.u32", types=(2,)),),
        ],
    )


def _resources(stack, local):
    return (read_resources(RESOURCES % (stack, local)),)


# check: (arguments that are clean, arguments on which it must fire)
FIXTURES = {
    "complete": _complete(),
    "rounding": _rounding(),
    "fusion": _fusion(),
    "machine_arithmetic": _machine_arithmetic(),
    "products": _products(),
    "own_memory": ([_resources(0, 0)], [_resources(16, 0), _resources(0, 8)]),
    "wide_accesses": _wide_accesses(),
    "images": (
        [(LISTED, ["80", "90"])],
        [
            (LISTED, ["80", "90", "100"]),
            (LISTED, ["90", "80"]),
            (_changed(LISTED, "sm_80", "sm_86"), ["80", "90"]),
        ],
    ),
}
