"""Request fields of all engines, judged by what they do to anyone but their sender.

    READ       read by the gateway, so written in exactly these letters
    PASSED     concern the sender's own answer, or are refused by engines unless their operators allow them
    ADAPTER    name an adapter or a model beside `model`: checked against the models of an API key
    TRANSFER   hosts, ranks and blocks of a disaggregated request: removed unless clients may split requests
    REMOVED    steer the engine, its other requests or its event streams: removed for everybody
    NAME       the request's name in an engine's tables: removed, and the gateway sends a name of its own

The same judgement holds whichever engine a request reaches. tests/requests/test_field_judgement.py
holds it against the
field lists of engines' request classes (tests/data/engines), tests/vllm/test_fields.py against the
installed vLLM: an unjudged field fails there. A field that is not listed passes.

An engine looks things up by some of these values, in tables that all its clients share. Such a key is never
a client's to choose where that reaches another client: it is removed, replaced, checked, or passes since it
finds nothing of anyone's (`docs/reference/modifications.md` has each key).
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final


class Judgement(Enum):
    READ = "read"
    PASSED = "passed"
    ADAPTER = "adapter"
    TRANSFER = "transfer"
    REMOVED = "removed"
    NAME = "name"


_GROUPS: Final[tuple[tuple[Judgement, str, str], ...]] = (
    (
        Judgement.READ,
        "the gateway decides by them: access, placement, tenant, duration",
        """
        model messages prompt stream cache_salt user priority vllm_xargs
        previous_response_id conversation store background
        """,
    ),
    (
        Judgement.NAME,
        "SGLang, vLLM, TensorRT-LLM: two equal ones at once are refused, mixed up, or crash the engine; vLLM "
        "repeats it in each chunk, and keeps responses under it",
        "rid request_id",
    ),
    (
        Judgement.REMOVED,
        "vLLM: makes the engine announce blocks again, which the gateway asks for itself",
        "kv_cache_report_mode",
    ),
    (
        Judgement.REMOVED,
        "SGLang: the data-parallel rank is the gateway's decision",
        "routed_dp_rank data_parallel_rank",
    ),
    (
        Judgement.REMOVED,
        "SGLang: code of the client's (a pickled class) that the engine runs",
        "custom_logit_processor",
    ),
    (
        Judgement.REMOVED,
        "SGLang: continues what another request left in the engine, by a name that can be guessed",
        "session_params",
    ),
    (
        Judgement.REMOVED,
        "SGLang, LMDeploy: a session of the engine's, by a name or number that any other client may choose; "
        "LMDeploy refuses the second request of one",
        "session_id",
    ),
    (
        Judgement.REMOVED,
        "llama.cpp: the number of a slot, of which all clients have the same few; one that is taken or does "
        "not exist waits in the queue of all",
        "id_slot",
    ),
    (
        Judgement.REMOVED,
        "SGLang: the engine's own number of an adapter, which no key lists",
        "lora_id",
    ),
    (
        Judgement.REMOVED,
        "SGLang: names under which other requests find images in the cache: theirs could be replaced",
        "mm_hashes mm_content_hashes",
    ),
    (
        Judgement.REMOVED,
        "SGLang: an orchestrator's orders to the KV cache",
        "kv_hints",
    ),
    (
        Judgement.REMOVED,
        "SGLang: the engine's own bookkeeping, and the socket that its answer goes to",
        "http_worker_ipc received_time external_trace_header",
    ),
    (
        Judgement.TRANSFER,
        "vLLM: hosts, engines and blocks of KV caches and of encoder caches",
        "kv_transfer_params ec_transfer_params",
    ),
    (
        Judgement.TRANSFER,
        "TensorRT-LLM: the other leg's endpoint and tokens, and the prompt in place of the messages",
        "disaggregated_params prompt_token_ids prompt_token_ids_b64 injected_chat_template_kwargs",
    ),
    (
        Judgement.TRANSFER,
        "SGLang: the other leg's host, room and rank, and encoders' URLs; bootstrap_* whatever follows",
        """
        bootstrap_host bootstrap_port bootstrap_room bootstrap_pair_key decode_tp_size
        disagg_prefill_dp_rank encoder_urls need_wait_for_mm_inputs num_items_assigned
        """,
    ),
    (Judgement.TRANSFER, "LMDeploy: the other leg's engine and blocks", "migration_request"),
    (
        Judgement.TRANSFER,
        "Dynamo: workers of either leg by number, and tokens in place of the prompt",
        "nvext",
    ),
    (
        Judgement.ADAPTER,
        "SGLang: adapters beside `model`, one or a list; vLLM's routes that load them",
        "lora_path lora_name",
    ),
    (Judgement.ADAPTER, "TensorRT-LLM: an adapter by its path in the engine's files", "lora_request"),
    (
        Judgement.ADAPTER,
        "llama.cpp: adapters by number; MLX: by path, and a draft model; LMDeploy, TGI: by name",
        "lora adapters draft_model adapter_name adapter_id",
    ),
    (
        Judgement.PASSED,
        "a prompt, and how it is made",
        """
        input inputs system instruction instructions text text_1 text_2 texts data data_1 data_2 query
        queries questions items documents context suffix template raw content_parts images videos audio file
        prompt_embeds input_ids input_embeds token_ids tokens previous_input_messages tools tool_choice
        parallel_tool_calls max_tool_calls add_generation_prompt continue_final_message add_special_tokens
        chat_template chat_template_kwargs reasoning reasoning_effort thinking thinking_token_budget
        max_thinking_tokens think require_reasoning enable_thinking reasoning_ended reasoning_parser_kwargs
        include_reasoning stream_reasoning separate_reasoning truncation truncation_side truncate
        truncate_prompt_tokens padding prompt_format_version do_preprocess prompt_ignore_length task betas
        hotwords language to_language state output_config input_type item_first label_token_ids
        """,
    ),
    (
        Judgement.PASSED,
        "media of the sender's, and their processing; engines fetch URLs as their operators let them",
        """
        image_url image_data video_data audio_data modalities media_io_kwargs mm_processor_kwargs mm_payload
        features return_mm_kwargs use_audio_in_video video_config images_config max_dynamic_patch
        min_dynamic_patch image_max_dynamic_patch video_max_dynamic_patch audio_duration_s
        timestamp_granularities timestamp_granularities[] positional_embed_overrides
        """,
    ),
    (
        Judgement.PASSED,
        "sampling, and when an answer ends",
        """
        temperature top_p top_p_min top_k min_p n best_of seed max_tokens max_completion_tokens
        max_output_tokens min_tokens max_new_tokens min_new_tokens stop stop_sequences stop_token_ids
        stop_regex no_stop_trim ignore_eos logit_bias bad_words allowed_token_ids presence_penalty
        frequency_penalty repetition_penalty repetition_detection length_penalty early_stopping
        use_beam_search sampling_params custom_params watermark watermarking xtc_probability xtc_threshold
        repetition_context_size num_draft_tokens options sampling_logprobs_mode
        """,
    ),
    (
        Judgement.PASSED,
        "the form of an answer",
        """
        response_format structured_outputs guided_json guided_regex guided_choice guided_grammar
        guided_decoding_backend regex ebnf json_schema format echo logprobs top_logprobs prompt_logprobs
        logprob_token_ids return_logprob logprob_start_len top_logprobs_num token_ids_logprob
        return_text_in_logprobs return_token_logprobs return_flat_raw_top_logprobs
        return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64 return_sampling_mask
        return_token_ids return_token_strs return_token_offsets return_tokens_as_token_ids
        return_prompt_token_ids return_prompt_text return_input_ids_in_sglext return_output_ids_in_sglext
        return_cached_tokens_details return_spec_tokens_details return_meta_info return_bytes return_entropy
        return_context_logits skip_special_tokens spaces_between_special_tokens include_stop_str_in_output
        detokenize token_offsets include output_mode enable_response_messages stream_options
        stream_interval stream_include_usage stream_continuous_usage_stats verbosity
        """,
    ),
    (
        Judgement.PASSED,
        "inner values of the sender's own prompt, which engines give out where they are started so",
        """
        return_hidden_states return_pooled_hidden_states return_routed_experts routed_experts_start_len
        routed_experts_prompt_start return_indexer_topk
        """,
    ),
    (
        Judgement.PASSED,
        "embeddings, scores and classes",
        """
        dimensions output_dimension encoding_format embed_dtype embedding_types endianness use_activation
        top_n max_tokens_per_doc max_tokens_per_query is_cross_encoder_request apply_softmax
        embed_override_token_id embed_overrides item_embed_overrides query_embed_overrides
        multi_item_delimiter_indices token_indices_to_pool decision_layout score_extraction_token add_bos
        """,
    ),
    (
        Judgement.PASSED,
        "names of the conversation or the sender, which engines only log",
        """
        metadata client_metadata service_tier safety_identifier custom_labels log_metrics no_logs
        """,
    ),
    (
        Judgement.PASSED,
        "SGLang, TensorRT-LLM: keys of a conversation, by which an engine chooses a rank or what to keep; "
        "with another client's one's own request goes where that one's goes",
        "conversation_id conversation_params agent_hierarchy",
    ),
    (
        Judgement.PASSED,
        "keys of the sender's own cache and order: a part of a name space, behind the tenant's salt where "
        "there is one (SGLang joins both), a hint, a turn among equals",
        "extra_key prompt_cache_key prompt_cache_retention routing_key cache_prompt",
    ),
    (
        Judgement.PASSED,
        "vLLM's routes about adapters and about texts of tokens, open only where an operator opens them",
        """
        lora_int_id load_inplace is_3d_lora_weight chat_request completion_request generate_chunk
        generate_response generate_responses prompt_tokens stream_state
        """,
    ),
    (
        Judgement.PASSED,
        "how long Ollama keeps the model; its routes are open only where an operator opens them",
        "keep_alive",
    ),
    (Judgement.PASSED, "LMDeploy's dialogues, of routes that are closed", "interactive_mode cancel"),
    (Judgement.PASSED, "LMDeploy: an answer's length", "request_output_len"),
    (
        Judgement.PASSED,
        "llama.cpp: sampling, grammars, reasoning, lengths, and the form of the sender's own answer",
        """
        adaptive_decay adaptive_target backend_sampling chat_format chat_parser dry_allowed_length
        dry_base dry_multiplier dry_penalty_last_n dry_sequence_breakers dynatemp_exponent
        dynatemp_range generation_prompt grammar grammar_lazy grammar_triggers grammar_type min_keep
        mirostat mirostat_eta mirostat_tau n_cache_reuse n_cmpl n_discard n_indent n_keep n_predict
        n_probs parse_tool_calls post_sampling_probs preserved_tokens reasoning_budget_end_tag
        reasoning_budget_end_tags reasoning_budget_message reasoning_budget_start_tag
        reasoning_budget_tokens reasoning_control reasoning_format repeat_last_n repeat_penalty
        response_fields return_progress return_tokens samplers sse_ping_interval t_max_predict_ms
        t_max_prompt_ms thinking_budget_tokens timings_per_token top_n_sigma typical_p verbose
        """,
    ),
)
"""Judgement, the engines that have the fields and the reason, names."""

NAMES: Final = frozenset(
    name for judgement, _, names in _GROUPS for name in names.split() if judgement is Judgement.NAME
)
"""Names of a request, which are left out of forms too."""

JUDGED: Final[Mapping[str, Judgement]] = {
    name: judgement for judgement, _, names in _GROUPS for name in names.split()
}
XARGS: Final = "vllm_xargs"
"""Fields within a field: vLLM hands them to the engine beside those of the top level."""
PARAMETERS: Final = "parameters"
"""Fields within a field, of TGI's own routes: an adapter is among them."""
BOOTSTRAP: Final = "bootstrap_"
UNREMARKABLE: Final = frozenset(
    name
    for name, judgement in JUDGED.items()
    if judgement in (Judgement.READ, Judgement.PASSED) and name != XARGS
)
"""Names that need no second look."""

GUARDED: Final[Mapping[str, str]] = {
    name.casefold(): name for name, judgement in JUDGED.items() if judgement is not Judgement.PASSED
}
"""Names by their case-folded form, which some parsers take for the same name."""


def judgement_of(name: str) -> Judgement | None:
    """Return the judgement of a field by its name; None if no engine is known to read it."""
    return Judgement.TRANSFER if name.startswith(BOOTSTRAP) else JUDGED.get(name)
