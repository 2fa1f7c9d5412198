"""What the table and the page of `zero plan` share: a mesh in words, and a mix as options in C."""

from output import Lines, Report

# Roles whose bytes are on the host whatever the tiers of shards are.
HOST_ROLES = ("io window", "save staging")


def role_tier(mix: Report, role: str) -> str:
    return mix["tiers"].get(role, "host" if role in HOST_ROLES else "device")


def offloaded(mix: Report) -> dict[str, str]:
    return {role: tier for role, tier in mix["tiers"].items() if tier != "device"}


def find_recommended(report: Report) -> Report | None:
    name = report["recommended"]
    return next((mix for mix in report["mixes"] if mix["name"] == name), None)


def left_out_lines(report: Report) -> Lines:
    """A line for each part of the model's file that is not planned, and one for what engines
    refuse."""
    for part in report["left_out"]:
        yield f"planned without {part}"
    if report["refused"]:
        names = "; ".join(refusal["name"] for refusal in report["refused"])
        yield f"planned without {names}: {report['refused'][0]['why']}"


def kept_text(report: Report) -> str:
    """What becomes of activations."""
    if report["recompute_selective"]:
        return "half recomputed"
    return "recomputed" if report["recompute"] else "kept"


def trainer_text(report: Report) -> str:
    """How a trainer computes, where the line says more than the default; else ''."""
    words = ["fused kernels"] if report["fused"] else []
    words += ["stored attention scores"] if report["attention"] == "stored" else []
    words += ["sends of the mesh beside products"] if report["mesh"]["mesh_overlap"] else []
    return ", ".join(words)


def mesh_lines(report: Report) -> Lines:
    """A line for the mesh around the engine, and one for what a peer does; none without either."""
    mesh = report["mesh"]
    if mesh["engine_ranks"] != report["ranks"] or mesh["context"] > 1 or mesh["expert"] > 1:
        line = f"mesh: tensor {mesh['tensor']} x pipeline {mesh['pipeline']}"
        if mesh["interleave"] > 1:
            line += f" ({mesh['interleave']} groups of blocks)"
        line += f", engines of {mesh['engine_ranks']} ranks"
        if mesh["expert"] > 1:
            line += (f", experts' of {mesh['engine_ranks'] // mesh['expert']}, "
                     f"{mesh['expert']} to a block")
        if mesh["context"] > 1:
            line += f", {mesh['context']} to a sample"
        yield line + (", stream split" if mesh["sequence_parallel"] else "")
    peer = ["matrices of blocks in fp8"] if mesh["fp8"] else []
    peer += ["ZeRO++ on the wire"] if mesh["wire"] == "zero++" else []
    if peer:
        yield "as a peer does: " + ", ".join(peer)


def option_lines(report: Report, mix: Report) -> Lines:
    yield "  zero_engine_options options = zero_engine_options_init();"
    yield "  options.device = ZERO_DEVICE_CUDA;"
    yield f"  options.stage = ZERO_STAGE_{mix['stage']};"
    if report["mesh"]["engine_ranks"] != report["ranks"]:
        yield ("  options.model_parallel = row; /* ranks of a sample's parts: docs/mesh.md */")
    if report["mesh"]["expert"] > 1:
        yield "  /* the experts are an engine of their own: docs/plan.md, --expert */"
    if mix["shard_group"]:
        yield f"  options.shard_group = {mix['shard_group']};"
    for role, tier in offloaded(mix).items():
        yield f"  options.tier[ZERO_ROLE_{role.upper()}] = ZERO_TIER_{tier.upper()};"
    if report["settings"]:
        yield "  zero_tuning tuning = zero_tuning_init();"
        yield "  options.tuning = &tuning;"
    for setting in report["settings"]:
        yield ('  (void)zero_option_set(&options, &tuning, "{name}", "{value}");'
               .format_map(setting))
