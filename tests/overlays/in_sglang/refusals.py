"""What `ServerArgs` makes of DDTREE's flags, and what it refuses; with tiny model folders and no GPU."""

from __future__ import annotations

import argparse
import dataclasses
from types import SimpleNamespace

from sglang.srt import server_args
from sglang.srt.speculative import ddtree_utils
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from tiny_models import DRAFT, TARGET, arguments, model


def refusal(**changes):
    try:
        arguments(**changes)
    except (ValueError, AssertionError) as error:
        return str(error)
    raise AssertionError(f"{changes} was taken")


def check_sizes_follow_from_the_budget_and_the_draft():
    plain = arguments()
    assert plain.speculative_ddtree_budget == 63
    assert plain.speculative_num_draft_tokens == 64
    assert plain.speculative_dflash_block_size == 8
    assert plain.speculative_num_steps == plain.speculative_eagle_topk == 1
    assert plain.attention_backend == "triton"
    assert plain.page_size == 1
    assert plain.disable_overlap_schedule
    assert plain.max_running_requests == 48
    small = arguments(speculative_ddtree_budget=7, speculative_ddtree_chain_seed=True)
    assert (small.speculative_num_draft_tokens, small.speculative_ddtree_chain_seed) == (8, True)
    block = arguments(speculative_dflash_block_size=4, speculative_ddtree_budget=15)
    assert (block.speculative_num_draft_tokens, block.speculative_dflash_block_size) == (16, 4)
    silent = {key: value for key, value in DRAFT.items() if key != "block_size"}
    unknown = arguments(speculative_draft_model_path=model("draft without a block size", silent))
    assert unknown.speculative_dflash_block_size == 16  # as with DFLASH


def check_resolved_arguments_can_be_resolved_again():
    for options in ({}, {"speculative_ddtree_budget": 31, "speculative_ddtree_chain_seed": True}):
        once = arguments(**options)
        twice = dataclasses.replace(once)
        for name in (
            "speculative_algorithm",
            "speculative_ddtree_budget",
            "speculative_ddtree_chain_seed",
            "speculative_num_draft_tokens",
            "speculative_dflash_block_size",
            "speculative_num_steps",
            "speculative_eagle_topk",
            "attention_backend",
            "page_size",
            "max_running_requests",
        ):
            assert getattr(once, name) == getattr(twice, name), name


def check_the_command_line_knows_the_flags():
    parser = argparse.ArgumentParser()
    server_args.ServerArgs.add_cli_args(parser)
    words = ["--model-path", "x", "--speculative-algorithm", "DDTREE", "--speculative-ddtree-budget", "31"]
    parsed = parser.parse_args([*words, "--speculative-ddtree-chain-seed"])
    assert parsed.speculative_algorithm == "DDTREE"
    assert (parsed.speculative_ddtree_budget, parsed.speculative_ddtree_chain_seed) == (31, True)
    parsed = parser.parse_args(words[:4])
    assert (parsed.speculative_ddtree_budget, parsed.speculative_ddtree_chain_seed) == (None, False)


HYBRID = {**TARGET, "layer_types": ["linear_attention", "full_attention"] * 2}
WINDOW = {**TARGET, "use_sliding_window": True, "sliding_window": 128, "max_window_layers": 2}
LATENT = {
    **TARGET,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "kv_lora_rank": 64,
    "q_lora_rank": None,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}

# Arguments -> what the message has to name.
REFUSED = (
    ({"speculative_ddtree_budget": 0}, "--speculative-ddtree-budget must be between 1 and 1024, got 0"),
    ({"speculative_ddtree_budget": -3}, "--speculative-ddtree-budget"),
    ({"speculative_ddtree_budget": 1025}, "--speculative-ddtree-budget"),
    ({"speculative_ddtree_budget": 6}, "--speculative-ddtree-budget 6 is less than the 7 drafts of a block"),
    ({"speculative_dflash_block_size": 1}, "--speculative-dflash-block-size must be at least 2"),
    ({"speculative_dflash_block_size": 80}, "--speculative-ddtree-budget 63 is less than the 79 drafts"),
    ({"speculative_num_draft_tokens": 16}, "--speculative-num-draft-tokens is 16"),
    ({"speculative_num_draft_tokens": 16, "speculative_ddtree_budget": 31}, "--speculative-num-draft-tokens"),
    ({"page_size": 16}, "--page-size must be 1"),
    ({"attention_backend": "flashinfer"}, "--attention-backend triton"),
    ({"attention_backend": "fa3"}, "--attention-backend triton"),
    ({"prefill_attention_backend": "flashinfer"}, "--prefill-attention-backend"),
    ({"decode_attention_backend": "flashinfer"}, "--decode-attention-backend"),
    ({"speculative_draft_attention_backend": "torch_native"}, "--speculative-draft-attention-backend"),
    ({"enable_dp_attention": True, "tp_size": 2, "dp_size": 2}, "--enable-dp-attention"),
    ({"pp_size": 2}, "--pipeline-parallel-size"),
    ({"disaggregation_mode": "prefill"}, "--disaggregation-mode"),
    ({"enable_two_batch_overlap": True}, "--enable-two-batch-overlap"),
    ({"enable_single_batch_overlap": True}, "--enable-single-batch-overlap"),
    ({"enable_pdmux": True}, "--enable-pdmux"),
    ({"enable_multi_layer_eagle": True}, "--enable-multi-layer-eagle"),
    ({"enable_mixed_chunk": True}, "--enable-mixed-chunk"),
    ({"speculative_adaptive": True}, "--speculative-adaptive"),
    ({"speculative_num_steps": 3}, "--speculative-num-steps"),
    ({"speculative_eagle_topk": 4}, "--speculative-eagle-topk"),
    ({"speculative_token_map": "map.pt"}, "--speculative-token-map"),
    ({"speculative_dflash_draft_window_size": 64}, "--speculative-dflash-draft-window-size"),
    ({"speculative_accept_threshold_single": 0.9}, "--speculative-accept-threshold-single"),
    ({"speculative_accept_threshold_acc": 0.9}, "--speculative-accept-threshold-acc"),
    ({"speculative_draft_model_path": None}, "--speculative-draft-model-path"),
    ({"device": "cpu"}, "--device"),
    ({"model_path": ("hybrid", HYBRID)}, "recurrent layers (linear_attention)"),
    ({"model_path": ("window", WINDOW)}, "sliding-window attention"),
    ({"model_path": ("latent", LATENT)}, "latent attention (MLA)"),
    ({"mem_fraction_static": 0.999, "speculative_ddtree_budget": 1023}, "--mem-fraction-static"),
    ({"speculative_algorithm": "ddtree"}, "--speculative-algorithm must be written DDTREE"),
    ({"speculative_algorithm": "DFLASH", "speculative_ddtree_budget": 31}, "--speculative-ddtree-budget"),
    ({"speculative_algorithm": "DFLASH", "speculative_ddtree_chain_seed": True}, "--speculative-ddtree-chain-seed"),
    ({"speculative_algorithm": None, "speculative_ddtree_budget": 31}, "--speculative-ddtree-budget"),
)


def check_what_is_not_supported_is_refused_with_its_flag():
    wrong = []
    for options, named in REFUSED:
        changes = {key: model(*value) if isinstance(value, tuple) else value for key, value in options.items()}
        try:
            message = refusal(**changes)
        except Exception as error:  # noqa: BLE001 - gathered
            wrong.append(f"{options}: {type(error).__name__}: {error}")
            continue
        if named not in message:
            wrong.append(f"{options}: {message}")
    assert not wrong, "\n".join(wrong)


def check_what_cannot_be_reached_from_here_is_refused_by_the_same_rule():
    """Some arguments SGLang refuses or changes itself on a machine like this one."""
    resolved = arguments()
    for name, value, flag in (
        ("enable_hisparse", True, "--enable-hisparse"),
        ("attn_cp_size", 2, "--attention-context-parallel-size"),
        ("dllm_algorithm", "LowConfidence", "--dllm-algorithm"),
        ("disaggregation_mode", "decode", "--disaggregation-mode"),
        ("speculative_draft_attention_backend", "trtllm_mha", "--speculative-draft-attention-backend"),
    ):
        changed = SimpleNamespace(**{**vars(resolved), name: value})
        changed.get_attention_backends = lambda: ("triton", "triton")
        changed.use_mla_backend = lambda: False
        try:
            ddtree_utils.check_ddtree_args(changed, resolved.get_model_config())
        except ValueError as error:
            assert flag in str(error), error
        else:
            raise AssertionError(f"{name} was taken")


def check_all_problems_are_told_at_once():
    message = refusal(page_size=16, attention_backend="flashinfer", enable_mixed_chunk=True)
    for named in ("--page-size", "--attention-backend", "--enable-mixed-chunk"):
        assert named in message
    assert message.startswith("DDTREE speculative decoding cannot be used like this:\n- ")


def check_a_loaded_target_is_looked_at_once_more():
    class TritonAttnBackend:
        pass

    def runner(**changes):
        options = {
            "attn_backend": TritonAttnBackend(),
            "sliding_window_size": None,
            "is_hybrid_swa": False,
            "use_mla_backend": False,
            "mambaish_config": None,
            "page_size": 1,
        }
        return SimpleNamespace(**{**options, **changes})

    ddtree_utils.check_ddtree_runtime(runner())
    for changes, named in (
        ({"attn_backend": SimpleNamespace()}, "--attention-backend"),
        ({"sliding_window_size": 127}, "sliding-window"),
        ({"is_hybrid_swa": True}, "sliding-window"),
        ({"use_mla_backend": True}, "MLA"),
        ({"mambaish_config": object()}, "recurrent"),
        ({"page_size": 64}, "--page-size"),
    ):
        try:
            ddtree_utils.check_ddtree_runtime(runner(**changes))
        except ValueError as error:
            assert named in str(error)
        else:
            raise AssertionError(f"{changes} was taken")


def check_memory_of_graphs_is_reckoned():
    sizes = {"max_bs": 48, "vocab_size": 151936, "context_len": 40960, "num_heads": 32, "head_dim": 128}
    used = ddtree_utils.ddtree_graph_bytes(rows=64, num_kv_splits=8, **sizes)
    logits, indices, mask = 48 * 64 * 151936 * 4, 48 * 64 * 40960 * 8, 48 * 64 * 40960
    splits = 48 * 64 * 32 * 8 * 129 * 4
    assert used == logits + indices + mask + splits
    ddtree_utils.check_ddtree_memory(used, 80 << 30, 0.9)
    ddtree_utils.check_ddtree_memory(used, None, 0.9)
    try:
        ddtree_utils.check_ddtree_memory(used, 40 << 30, 0.95)
    except ValueError as error:
        assert "--cuda-graph-max-bs" in str(error)
    else:
        raise AssertionError("it was taken")


def check_dflash_resolves_as_without_the_series():
    plain = arguments(speculative_algorithm="DFLASH", attention_backend="triton")
    assert plain.speculative_num_draft_tokens == 8
    assert plain.speculative_dflash_block_size is None
    assert plain.speculative_ddtree_budget is None
    given = arguments(
        speculative_algorithm="DFLASH",
        attention_backend="triton",
        speculative_dflash_block_size=4,
        speculative_dflash_draft_window_size=64,
        speculative_eagle_topk=4,
        enable_mixed_chunk=True,
    )
    assert (given.speculative_num_draft_tokens, given.speculative_eagle_topk) == (4, 1)
    assert not given.enable_mixed_chunk
    assert "must match" in refusal(
        speculative_algorithm="DFLASH", speculative_dflash_block_size=4, speculative_num_draft_tokens=6
    )


def check_the_algorithm_has_a_name_and_moves_no_other():
    assert SpeculativeAlgorithm.from_string("DDTREE") is SpeculativeAlgorithm.DDTREE
    assert SpeculativeAlgorithm.DDTREE.is_ddtree()
    assert SpeculativeAlgorithm.DDTREE.is_dflash()
    assert not SpeculativeAlgorithm.DFLASH.is_ddtree()
    assert not SpeculativeAlgorithm.DDTREE.is_eagle()
    assert not SpeculativeAlgorithm.DDTREE.supports_spec_v2()
    assert [member.name for member in SpeculativeAlgorithm] == [
        "DFLASH",
        "EAGLE",
        "EAGLE3",
        "STANDALONE",
        "NGRAM",
        "NONE",
        "DDTREE",
    ]
    assert [member.value for member in SpeculativeAlgorithm] == list(range(1, 8))
    try:
        SpeculativeAlgorithm.DDTREE.create_worker(SimpleNamespace(disable_overlap_schedule=False))
    except ValueError as error:
        assert "DDTREE" in str(error)
    else:
        raise AssertionError("it was taken")
