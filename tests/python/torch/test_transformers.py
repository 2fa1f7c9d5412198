"""zeroshard.torch on models of the package transformers, made from configurations."""

import os
import tempfile
import unittest

import nets
import torch
from nets import BLOCKS, VOCAB, distance, main, same, weights

import zeroshard
import zeroshard.torch as zt

try:
    import transformers
except ImportError:
    raise SystemExit(77) from None

transformers.logging.set_verbosity_error()
STEPS, BOUND = 3, 5e-5  # 1/200 of a step
SMALL = {"vocab_size": VOCAB, "use_cache": False}


def gpt2():
    config = transformers.GPT2Config(n_embd=16, n_layer=BLOCKS, n_head=2, n_positions=8,
                                     resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **SMALL)
    return transformers.GPT2LMHeadModel(config)


def llama():
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=BLOCKS, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=False, **SMALL)
    return transformers.LlamaForCausalLM(config)


def t5():
    config = transformers.T5Config(d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2,
                                   dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0,
                                   **SMALL)
    return transformers.T5ForConditionalGeneration(config)


KINDS = (gpt2, llama, t5)


def loss_of(model, x, y):
    return model(input_ids=x, labels=y).loss


def trained(kind, ranks, checkpointing=None, **options):
    def rank(world):
        module = nets.make(kind)
        if checkpointing is not None:
            module.gradient_checkpointing_enable({"use_reentrant": checkpointing})
        module.train()
        with zt.shard(module, world, **options) as model:
            losses = nets.train(model, world.rank, STEPS, loss_of=loss_of)
            return weights(model), losses

    return zeroshard.World.run(ranks, rank)


class Models(unittest.TestCase):
    def test_they_train_as_plain_torch(self):
        for kind in KINDS:
            for ranks in (1, 2):
                with self.subTest(kind=kind.__name__, ranks=ranks):
                    wanted, _ = nets.plain(nets.make(kind).train(), ranks, STEPS, loss_of)
                    got = [trained(kind, ranks, stage=stage, bucket_bytes=1)[0][0]
                           for stage in (0, 3)]
                    self.assertTrue(same(*got))
                    self.assertLess(distance({name: wanted[name] for name in got[0]}, got[0]),
                                    BOUND)

    def test_their_blocks_are_units(self):
        for kind, block, count in ((gpt2, "GPT2Block", 3), (llama, "LlamaDecoderLayer", 3),
                                   (t5, "T5Block", 4)):
            with zeroshard.World.self_() as world, zt.shard(nets.make(kind), world) as model:
                self.assertEqual(len(model._run.units), 1 + count)
                self.assertIn(block, repr(model))

    def test_checkpointing(self):
        for kind in KINDS:
            for reentrant in (False, True):
                with self.subTest(kind=kind.__name__, reentrant=reentrant):
                    module = nets.make(kind).train()
                    module.gradient_checkpointing_enable({"use_reentrant": reentrant})
                    wanted, _ = nets.plain(module, 2, STEPS, loss_of)
                    got = trained(kind, 2, checkpointing=reentrant)[0][0]
                    self.assertLess(distance({name: wanted[name] for name in got}, got), BOUND)

    def test_weights_go_to_files_and_back(self):
        """save_pretrained's file is loaded, and from_pretrained loads what save_weights wrote."""
        for kind in KINDS:
            with self.subTest(kind=kind.__name__), tempfile.TemporaryDirectory() as folder:
                theirs, ours = os.path.join(folder, "theirs"), os.path.join(folder, "ours")
                module = nets.make(kind, seed=7)
                wanted = {name: value.clone() for name, value in module.state_dict().items()}
                module.save_pretrained(theirs, max_shard_size="5KB")

                def rank(world):
                    with zt.shard(nets.make(kind), world) as model:
                        model.load_weights(theirs)
                        model.save_weights(ours)
                        return model.state_dict()

                self.assertTrue(same(wanted, zeroshard.World.run(2, rank)[1]))
                module.config.save_pretrained(ours)
                back = type(module).from_pretrained(ours)
                self.assertTrue(same(wanted, back.state_dict()))

    def test_generation(self):
        prompt = torch.tensor([[1, 2, 3]])
        wanted = nets.make(gpt2).eval().generate(prompt, max_new_tokens=4, do_sample=False,
                                                 pad_token_id=0)

        def rank(world):
            with zt.shard(nets.make(gpt2).eval(), world) as model:
                return model.generate(prompt, max_new_tokens=4, do_sample=False, pad_token_id=0)

        for got in zeroshard.World.run(2, rank):
            self.assertTrue(torch.equal(wanted, got))

    def test_low_rank_adapters_by_hand(self):
        """Trained matrices beside frozen ones, in every block."""
        def adapted():
            module = gpt2()
            module.requires_grad_(False)
            for block in module.transformer.h:
                layer = block.mlp.c_proj
                layer.down = torch.nn.Parameter(torch.randn(64, 2) * 0.1)
                layer.up = torch.nn.Parameter(torch.randn(2, 16) * 0.1)
                layer.forward = _adapted_forward(layer)
            return module

        wanted, _ = nets.plain(nets.make(adapted), 2, STEPS, loss_of)
        got = trained(adapted, 2)[0][0]
        self.assertLess(distance({name: wanted[name] for name in got}, got), BOUND)
        first = dict(nets.make(adapted).named_parameters())
        moved = {name for name in got if not torch.equal(first[name], got[name])}
        self.assertEqual(moved, {name for name in got if name.endswith((".down", ".up"))})


def _adapted_forward(layer):
    def forward(x):
        return type(layer).forward(layer, x) + x @ layer.down @ layer.up

    return forward


if __name__ == "__main__":
    main()
