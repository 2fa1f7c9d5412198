"""The package zeroshard: what its calls do, against numpy or against another path's bits."""

import ctypes
import os
import tempfile
import threading
import unittest

import numpy as np
import zeroshard
from cases import main
from zeroshard import BACKWARD, EVAL, FORWARD, Engine, Model, Tensor, World

UNITS, ROWS, COLUMNS = 3, 24, 40


def initial(index):
    values = np.empty((ROWS, COLUMNS), np.float32)
    return zeroshard.random_normal(values, 7, index)


def describe(dtype="f32"):
    model = Model()
    for i in range(UNITS):
        weight = Tensor(f"w{i}", (ROWS, COLUMNS), dtype, initial=initial(i))
        model.add_unit(f"u{i}", [weight, Tensor(f"b{i}", (COLUMNS,), dtype, no_decay=True)])
    return model


def gradient(rank, step, unit):
    """Small whole numbers: sums of them are exact in any order."""
    numbers = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    return (numbers * (rank + 2 * step + 3 * unit + 1)) % 16 - 7


def micro_step(engine, rank, step=0, last=True):
    with engine.micro_step(last=last):
        for i in range(UNITS):
            with engine.unit(i, FORWARD):
                pass
        for i in reversed(range(UNITS)):
            with engine.unit(i, BACKWARD) as unit:
                grad = unit.grads[0]
                if grad.dtype == np.uint16:
                    added = zeroshard.to_f32(grad) + gradient(rank, step, i)
                    grad[...] = zeroshard.from_f32(added)
                else:
                    grad += gradient(rank, step, i)


def trained(world, steps=3, dtype="f32", hyper=None, **options):
    with Engine(world, describe(dtype), **options) as engine:
        for step in range(steps):
            micro_step(engine, world.rank, step)
            engine.step(**(hyper or {"lr": 0.01}))
        return engine.weights()


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


class Views(unittest.TestCase):
    def setUp(self):
        self.world = World.self_()
        self.engine = Engine(self.world, describe(), stage=3)

    def tearDown(self):
        self.engine.close()
        self.world.close()

    def test_params_are_the_memory_of_the_unit(self):
        with self.engine.unit(1, EVAL) as one, self.engine.unit(1, EVAL) as again:
            self.assertEqual(one.params[0].ctypes.data, again.params[0].ctypes.data)
            self.assertTrue(np.array_equal(one.params[0], initial(1)))
            self.assertEqual([p.shape for p in one.params], [(ROWS, COLUMNS), (COLUMNS,)])

    def test_params_cannot_be_written(self):
        with self.engine.unit(0, EVAL) as unit, self.assertRaises(ValueError):
            unit.params[0][0] = 1

    def test_gradients_that_are_held_cannot_be_written_after_the_block(self):
        with self.engine.micro_step():
            with self.engine.unit(0, BACKWARD) as unit:
                grad = unit.grads[0]
                grad += 1
            with self.assertRaises(ValueError):
                grad += 1

    def test_arrays_are_there_inside_the_block_only(self):
        use = self.engine.unit(0, EVAL)
        with self.assertRaisesRegex(ValueError, "inside `with"):
            _ = use.params
        with use:
            with self.assertRaisesRegex(ValueError, "BACKWARD"):
                _ = use.grads
        with self.assertRaisesRegex(ValueError, "inside `with"):
            _ = use.params

    def test_memory_lives_as_long_as_an_array(self):
        with self.engine.unit(2, EVAL) as unit:
            kept = unit.params[0]
        self.engine.close()
        with self.assertRaisesRegex(ValueError, "the engine is closed"):
            self.engine.stats()
        self.assertEqual(float(kept.sum() * 0), 0)

    def test_dlpack_shares_the_memory(self):
        with self.engine.micro_step(), self.engine.unit(0, BACKWARD) as unit:
            shared = np.from_dlpack(unit.grads_dlpack[0])
            unit.grads[0][3, 5] = 8
            self.assertEqual(shared[3, 5], 8)
            self.assertEqual(unit.grads_dlpack[0].__dlpack_device__(), (1, 0))
            del shared

    def test_poison_shows_a_view_that_is_kept(self):
        with Engine(self.world, describe(), poison_released=True) as engine:
            with engine.unit(0, EVAL) as unit:
                kept = unit.params[0]
                self.assertTrue(np.array_equal(kept, initial(0)))
            self.assertTrue(np.isnan(kept).all())

    def test_codes_and_scales(self):
        with Engine(self.world, describe(), gather_dtype="int8", encoded_views=True) as engine:
            with engine.unit(0, EVAL) as unit:
                codes, scales = unit.encoded[0]
                self.assertEqual((codes.dtype, scales.dtype), (np.int8, np.uint16))
                self.assertEqual(len(scales), (ROWS * COLUMNS + 127) // 128)
                steps = np.repeat(zeroshard.to_f32(scales) / 127, 128)[:ROWS * COLUMNS]
                wrong = np.abs(codes * steps - initial(0).ravel())
                self.assertTrue((wrong <= steps * 0.51).all())
                self.assertIsNone(unit.params[0])

    def test_values_without_codes(self):
        with self.engine.unit(0, EVAL) as unit:
            with self.assertRaisesRegex(ValueError, "call zero_tensor_data"):
                _ = unit.encoded

    def test_frozen_tensors_have_no_gradient(self):
        model = Model()
        model.add_unit("u", [Tensor("w", (8,)), Tensor("f", (8,), frozen=True)])
        with Engine(self.world, model) as engine, engine.micro_step():
            with engine.unit(0, BACKWARD) as unit:
                self.assertIsNone(unit.grads[1])


class Bfloat16(unittest.TestCase):
    def test_rounds_to_nearest_even(self):
        # Between 1 and the next bfloat16, 1 + 2**-7: ties go to the even one.
        values = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -2.5, np.inf],
                          np.float32)
        wanted = np.array([1, 1, 1 + 2**-6, 1 + 2**-7, -2.5, np.inf], np.float32)
        self.assertTrue(np.array_equal(zeroshard.to_f32(zeroshard.from_f32(values)), wanted))

    def test_nan_stays_nan(self):
        bits = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
        self.assertTrue(np.isnan(zeroshard.to_f32(zeroshard.from_f32(bits))).all())

    def test_all_bits_survive(self):
        bits = np.arange(0x7F81, dtype=np.uint16)  # zero to infinity
        self.assertTrue(np.array_equal(zeroshard.from_f32(zeroshard.to_f32(bits)), bits))

    def test_the_engine_rounds_alike(self):
        with World.self_() as world, Engine(world, describe("bf16")) as engine:
            with engine.unit(0, EVAL) as unit:
                self.assertEqual(unit.params[0].dtype, np.uint16)
                self.assertTrue(np.array_equal(unit.params[0], zeroshard.from_f32(initial(0))))

    def test_gradients_are_added(self):
        weights = World.run(2, lambda world: trained(world, dtype="bf16"))
        self.assertFalse(np.array_equal(weights[0]["w0"], initial(0)))
        self.assertTrue(same(weights[0], weights[1]))


class Steps(unittest.TestCase):
    def test_stages_have_the_same_bits(self):
        runs = [World.run(2, lambda world, s=stage: trained(world, stage=s)) for stage in range(4)]
        for weights in runs:
            self.assertTrue(same(weights[0], runs[0][0]) and same(weights[1], runs[0][0]))

    def test_sgd_is_numpys(self):
        ranks = 2
        got = World.run(ranks, lambda world: trained(world, 2, optimizer="sgd", hyper={"lr": 0.5}))
        for i in range(UNITS):
            wanted = initial(i)
            for step in range(2):
                mean = sum(gradient(r, step, i) for r in range(ranks)) / np.float32(ranks)
                wanted = wanted - np.float32(0.5) * mean
            np.testing.assert_allclose(got[0][f"w{i}"], wanted, rtol=1e-6, atol=1e-6)

    def test_groups_have_numbers_of_their_own(self):
        model = Model()
        model.add_unit("u", [Tensor("a", (4,)), Tensor("b", (4,), group=1)])
        with World.self_() as world, Engine(world, model, group_optimizer={0: "sgd", 1: "sgd"},
                                            optimizer="sgd") as engine:
            with engine.micro_step(), engine.unit(0, BACKWARD) as unit:
                unit.grads[0] += 1
                unit.grads[1] += 1
            engine.step(groups=[{"lr": 1}, {"lr": 2}])
            self.assertEqual(engine.export("a")[0], -1)
            self.assertEqual(engine.export("b")[0], -2)

    def test_the_norm_is_numpys_before_and_after(self):
        with World.self_() as world, Engine(world, describe()) as engine:
            micro_step(engine, 0)
            squares = [np.square(gradient(0, 0, i), dtype=np.float64).sum() for i in range(UNITS)]
            norm = engine.grad_norm()
            self.assertAlmostEqual(norm, float(np.sqrt(sum(squares))), places=4)
            result = engine.step(lr=0.1, max_norm=1.0)
            self.assertEqual((result.norm, result.skipped, result.step), (norm, False, 1))
            self.assertAlmostEqual(result.clip * norm, 1, places=3)

    def test_a_result_that_is_held_is_its_own_steps(self):
        with World.self_() as world, Engine(world, describe()) as engine:
            results = []
            for step in range(3):
                micro_step(engine, 0, step)
                results.append(engine.step(lr=0.1))
            self.assertEqual([result.step for result in results], [1, 2, 3])

    def test_gradients_that_are_not_finite_skip(self):
        with World.self_() as world, Engine(world, describe()) as engine:
            with engine.micro_step(), engine.unit(0, BACKWARD) as unit:
                unit.grads[0][0, 0] += np.inf
            self.assertTrue(engine.step(lr=1).skipped)
            self.assertTrue(np.array_equal(engine.export("w0"), initial(0)))

    def test_a_discarded_step_leaves_no_trace(self):
        with World.self_() as world, Engine(world, describe()) as engine:
            micro_step(engine, 0, 5)
            engine.discard()
            with self.assertRaises(KeyError), engine.micro_step():
                with engine.unit(0, BACKWARD) as unit:
                    unit.grads[0] += 1
                    raise KeyError
            engine.abandon()
            for step in range(3):
                micro_step(engine, 0, step)
                engine.step(lr=0.01)
            self.assertTrue(same(engine.weights(), trained(world)))
            self.assertEqual(engine.stats()["steps_discarded"], 2)

    def test_weights_of_tokens_divide(self):
        def rank(world):
            with Engine(world, describe(), optimizer="sgd") as engine:
                micro_step(engine, 0)
                engine.step(lr=1, grad_weight=3 if world.rank == 0 else 1)
                return engine.export("w0")

        got = World.run(2, rank)[0]
        np.testing.assert_allclose(got, initial(0) - 2 * gradient(0, 0, 0) / 4, atol=1e-6)


class Addresses(unittest.TestCase):
    """The split calls, for callers with an order of their own."""

    def test_they_are_those_of_the_arrays(self):
        model = Model()
        model.add_unit("u", [Tensor("a", (4,), initial=np.arange(4, dtype=np.float32)),
                             Tensor("b", (2,), frozen=True)])
        with World.self_() as world, Engine(world, model, optimizer="sgd") as engine:
            with engine.unit(0) as unit:
                wanted = tuple(array.ctypes.data for array in unit.params)
                self.assertEqual(engine.params_acquire(0), wanted)
                engine.params_release(0)
            with engine.micro_step():
                address = engine.params_acquire(0, BACKWARD)[0]
                values = np.from_dlpack(engine.memory_at(address, 16)).view(np.float32)
                self.assertTrue(np.array_equal(values, np.arange(4)))
                grads = engine.grads_acquire(0)
                self.assertEqual(grads[1], 0)
                # Older numpy makes arrays of DLPack that cannot be written to.
                grad = np.ctypeslib.as_array((ctypes.c_float * 4).from_address(grads[0]))
                grad += 1
                engine.params_release(0)
                engine.grads_ready(0)
            engine.step(lr=0.5)
            self.assertTrue(np.array_equal(engine.export("a"), np.arange(4) - 0.5))

    def test_misuse_is_told(self):
        with World.self_() as world, Engine(world, describe()) as engine:
            with self.assertRaisesRegex(IndexError, "unit 9"):
                engine.params_acquire(9)
            with self.assertRaisesRegex(ValueError, "pass 7"):
                engine.params_acquire(0, 7)
            for call in (engine.params_release, engine.grads_ready, engine.grads_acquire):
                with self.assertRaises(zeroshard.StateError):
                    call(0)


class Tensors(unittest.TestCase):
    def test_fill_gives_each_rank_its_own(self):
        def rank(world):
            with Engine(world, describe()) as engine:
                engine.fill(lambda tensor, first, values: zeroshard.random_normal(
                    values, 9, tensor, first))
                return engine.weights()

        got = World.run(3, rank)
        wanted = zeroshard.random_normal(np.empty((ROWS, COLUMNS), np.float32), 9, 2)
        self.assertTrue(np.array_equal(got[2]["w1"], wanted))

    def test_what_fill_raises_comes_back(self):
        def wrong(tensor, first, values):
            raise LookupError(f"no values of {tensor}")

        with World.self_() as world, Engine(world, describe()) as engine:
            with self.assertRaisesRegex(LookupError, "no values of 0"):
                engine.fill(wrong)

    def test_set_and_export(self):
        def rank(world):
            with Engine(world, describe()) as engine:
                for name in ("w0", "w1", "w2"):
                    engine.set_tensor(name, initial(5))
                first, values = engine.shard("w1")
                whole = engine.export("w1", wanted=world.rank == 0)
                return first, values, whole

        got = World.run(2, rank)
        self.assertIsNone(got[1][2])
        self.assertTrue(np.array_equal(got[0][2], initial(5)))
        joined = np.concatenate([values for _, values, _ in got])
        self.assertTrue(np.array_equal(joined, initial(5).ravel()))

    def test_shards_are_written(self):
        def rank(world):
            with Engine(world, describe()) as engine:
                first, values = engine.shard("w1")
                engine.set_shard("w1", first, values + 1)
                with self.assertRaisesRegex(ValueError, "float64"):
                    engine.set_shard("w1", first, values.astype(np.float64))
                return engine.export("w1")

        self.assertTrue(np.array_equal(World.run(2, rank)[1], initial(1) + np.float32(1)))

    def test_a_checkpoint_at_other_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            def saves(world):
                with Engine(world, describe()) as engine:
                    for step in range(2):
                        micro_step(engine, 0, step)
                        engine.step(lr=0.01)
                    engine.save(folder, data_position=17, user=b"mine")

            def loads(world):
                with Engine(world, describe(), stage=1) as engine:
                    report = engine.load(folder)
                    micro_step(engine, 0, 2)
                    engine.step(lr=0.01)
                    return report, engine.weights()

            World.run(1, saves)
            report, weights = World.run(2, loads)[1]
            self.assertEqual((report.step, report.data_position, report.user, report.loaded),
                             (2, 17, b"mine", 2 * UNITS))
            with World.self_() as world:
                self.assertTrue(same(weights, trained(world)))

    def test_no_checkpoint_yet(self):
        with tempfile.TemporaryDirectory() as folder, World.self_() as world:
            with Engine(world, describe()) as engine:
                self.assertEqual(engine.load(folder, if_any=True).folder, "")
                with self.assertRaises(zeroshard.InvalidArgumentError):
                    engine.load(folder)

    def test_evicted_state_comes_back(self):
        with tempfile.TemporaryDirectory() as folder, World.self_() as world:
            with Engine(world, describe("bf16"), disk_directories=[folder]) as engine:
                micro_step(engine, 0, 0)
                engine.step(lr=0.01)
                held = engine.memory().total - engine.memory().tiers["disk"]
                engine.evict()
                self.assertLess(engine.memory().tiers["device"], held)
                engine.restore()
                micro_step(engine, 0, 1)
                engine.step(lr=0.01)
                self.assertTrue(same(engine.weights(), trained(world, 2, "bf16")))

    def test_state_on_disk_has_the_same_bits(self):
        with tempfile.TemporaryDirectory() as folder, World.self_() as world:
            tier = {"moment1": "disk", "moment2": "disk"}
            got = trained(world, tier=tier, disk_directories=folder)
            self.assertTrue(same(got, trained(world)))

    def test_small_states_are_saved_and_go_on_as_fp32(self):
        with tempfile.TemporaryDirectory() as folder, World.self_() as world:
            with Engine(world, describe("bf16"), master_dtype="remainder16",
                        moment_dtype="i8") as engine:
                micro_step(engine, 0)
                engine.step(lr=0.01)
                values = {role: engine.export("w0", role)
                          for role in ("master", "moment1", "moment2")}
                codes, scales = (engine.shard("w0", role)[1] for role in ("moment1", "scale1"))
                engine.save(folder)
            self.assertEqual((codes.dtype, scales.size), (np.uint8, -(-codes.size // 32)))
            steps = np.repeat(zeroshard.to_f32(scales) / np.float32(29.5), 32)[:codes.size]
            q = codes.astype(np.uint32)
            level = (0x40000000 + ((q & 127) << 18)).view(np.float32) - np.float32(2)
            moment = np.where(q < 128, level, -level) * steps
            self.assertTrue(np.array_equal(moment, values["moment1"].reshape(-1)))
            with Engine(world, describe("bf16")) as engine:
                engine.load(folder)
                for role, array in values.items():
                    self.assertTrue(np.array_equal(engine.export("w0", role), array), role)


class Plans(unittest.TestCase):
    def test_the_engine_holds_what_was_planned(self):
        def rank(world):
            with Engine(world, describe("bf16"), stage=2) as engine:
                return engine.memory(), engine.plan.memory

        held, planned = World.run(2, rank)[0]
        self.assertEqual(held, planned)
        self.assertEqual(zeroshard.plan(describe("bf16"), 2, stage=2).memory, planned)

    def test_a_budget_is_kept(self):
        with self.assertRaisesRegex(zeroshard.OutOfMemoryError, "device_budget_bytes") as caught:
            zeroshard.plan(describe(), 4, device_budget_bytes="8K")
        self.assertIsInstance(caught.exception, MemoryError)
        self.assertEqual(caught.exception.status, "OUT_OF_MEMORY")

    def test_options_by_name(self):
        options = zeroshard.Options(stage=1, look_ahead=2, no_prefetch=False, grad_dtype="f32")
        self.assertEqual([options.as_dict()[n] for n in ("stage", "look_ahead")], ["1", "2"])
        self.assertIn("look_ahead", zeroshard.Options.names())


class Ranks(unittest.TestCase):
    def test_values_come_back_by_rank(self):
        self.assertEqual(World.run(3, lambda world: (world.rank, world.size)),
                         [(0, 3), (1, 3), (2, 3)])

    def test_collectives(self):
        def rank(world):
            world.barrier()
            return world.gather(bytes([world.rank] * 2)), world.mean(world.rank)

        self.assertEqual(World.run(2, rank), [([b"\0\0", b"\1\1"], 0.5)] * 2)

    def test_the_first_exception_comes_back(self):
        def rank(world):
            with Engine(world, describe()) as engine:
                if world.rank == 1:
                    raise LookupError("the data is gone")
                micro_step(engine, 0)
                engine.step()

        with self.assertRaisesRegex(LookupError, "the data is gone") as caught:
            World.run(3, rank, deadline_ms=20000)
        self.assertEqual(caught.exception.__notes__, ["on rank 1 of 3"])

    def test_an_error_has_its_parts(self):
        def rank(world):
            with Engine(world, describe(), stage=world.rank):
                pass

        with self.assertRaisesRegex(zeroshard.MismatchError, "stage") as caught:
            World.run(2, rank)
        self.assertEqual(caught.exception.status, "MISMATCH")
        self.assertTrue(caught.exception.file.endswith(".c") and caught.exception.line > 0)

    def test_a_rank_that_left_is_named(self):
        def rank(world):
            if world.rank == 0:
                world.barrier()

        with self.assertRaisesRegex(zeroshard.CommError, "rank 1"):
            World.run(2, rank, deadline_ms=20000)

    def test_an_engine_that_is_kept_is_an_error(self):
        kept = []
        with self.assertRaisesRegex(zeroshard.StateError, "engine"):
            World.run(1, lambda world: kept.append(Engine(world, describe())))
        kept[0].close()

    def test_the_gil_is_free_while_a_rank_waits(self):
        came = threading.Event()

        def rank(world):
            if world.rank == 0:
                world.barrier()
                return came.is_set()
            came.set()
            world.barrier()

        self.assertTrue(World.run(2, rank, deadline_ms=20000)[0])


class Memory(unittest.TestCase):
    def test_ten_thousand_steps_do_not_grow(self):
        def resident():
            with open("/proc/self/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        with World.self_() as world, Engine(world, describe()) as engine:
            for step in range(10000):
                if step == 1000:
                    before = resident()
                with engine.micro_step(), engine.unit(0, BACKWARD) as unit:
                    unit.grads[0][0] += unit.params[0][0]
                _ = engine.step(lr=1e-5).norm
            self.assertLess(resident() - before, 1 << 20)


if __name__ == "__main__":
    main()
