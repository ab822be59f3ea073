"""Names of transformers 5.19: tokenizer classes by model type, and those that make a tokenizer of their own.

Data of models/auto/tokenization_auto.py; `tests/vllm/test_tokenizer_class.py` compares with it."""

from collections.abc import Mapping
from typing import Final

_MODEL_TYPES: Final[Mapping[str, str]] = {
    "AlbertTokenizer": ("albert yoso "),
    "BartTokenizer": ("florence2 "),
    "BarthezTokenizer": ("barthez "),
    "BartphoTokenizer": ("bartpho "),
    "BertGenerationTokenizer": ("bert-generation "),
    "BertJapaneseTokenizer": ("bert-japanese "),
    "BertTokenizer": (
        "align bark bert blip bros chinese_clip convbert distilbert electra ernie flava git "
        "grounding-dino layoutlm megatron-bert mm-grounding-dino nezha nomic_bert qdqbert realm "
        "retribert squeezebert tvp vilt visual_bert "
    ),
    "BertweetTokenizer": ("bertweet "),
    "BigBirdTokenizer": ("big_bird "),
    "BioGptTokenizer": ("biogpt "),
    "BlenderbotSmallTokenizer": ("blenderbot-small "),
    "BlenderbotTokenizer": ("blenderbot "),
    "ByT5Tokenizer": ("byt5 "),
    "CLIPTokenizer": (
        "aimv2 clip clipseg groupvit omdet-turbo oneformer owlv2 owlvit sam3 sam3_video xclip "
    ),
    "CTRLTokenizer": ("ctrl "),
    "CamembertTokenizer": ("camembert "),
    "CanineTokenizer": ("canine "),
    "ClvpTokenizer": ("clvp "),
    "CodeLlamaTokenizer": ("code_llama "),
    "CohereTokenizer": ("aya_vision cohere cohere2 "),
    "CpmAntTokenizer": ("cpmant "),
    "CpmTokenizer": ("cpm "),
    "DPRQuestionEncoderTokenizer": ("dpr "),
    "DebertaTokenizer": ("deberta "),
    "DebertaV2Tokenizer": ("deberta-v2 "),
    "DiaTokenizer": ("dia "),
    "EsmTokenizer": ("esm "),
    "EsmcTokenizer": ("esmc esmfold2 "),
    "FNetTokenizer": ("fnet "),
    "FSMTTokenizer": ("fsmt "),
    "FlaubertTokenizer": ("flaubert "),
    "FunnelTokenizer": ("funnel "),
    "GPT2Tokenizer": (
        "blip-2 codegen dbrx emu3 gpt2 gpt_neo gptj hyperclovax_vision_v2 instructblip "
        "instructblipvideo jais2 opt phi starcoder2 "
    ),
    "GPTNeoXJapaneseTokenizer": ("gpt_neox_japanese "),
    "GPTNeoXTokenizer": ("falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm "),
    "GPTSw3Tokenizer": ("gpt-sw3 "),
    "GemmaTokenizer": (
        "diffusion_gemma gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma "
        "shieldgemma2 t5gemma zaya "
    ),
    "HerbertTokenizer": ("herbert "),
    "LEDTokenizer": ("led "),
    "LasrTokenizer": ("lasr_ctc lasr_encoder "),
    "LayoutLMv2Tokenizer": ("layoutlmv2 "),
    "LayoutLMv3Tokenizer": ("layoutlmv3 "),
    "LayoutXLMTokenizer": ("layoutxlm "),
    "LlamaTokenizer": ("idefics idefics2 "),
    "LukeTokenizer": ("luke "),
    "LxmertTokenizer": ("lxmert "),
    "M2M100Tokenizer": ("m2m_100 "),
    "MBart50Tokenizer": ("mbart50 "),
    "MBartTokenizer": ("mbart "),
    "MLukeTokenizer": ("mluke "),
    "MPNetTokenizer": ("mpnet "),
    "MarianTokenizer": ("marian "),
    "MarkupLMTokenizer": ("markuplm "),
    "MgpstrTokenizer": ("mgp-str "),
    "MistralCommonBackend": (
        "ministral ministral3 mistral mistral3 mixtral pixtral voxtral voxtral_realtime "
    ),
    "MobileBertTokenizer": ("mobilebert "),
    "MvpTokenizer": ("mvp "),
    "MyT5Tokenizer": ("myt5 "),
    "NllbTokenizer": ("nllb nllb-moe "),
    "NougatTokenizer": ("nougat pp_formulanet "),
    "OpenAIGPTTokenizer": ("openai-gpt "),
    "PLBartTokenizer": ("plbart "),
    "ParakeetTokenizer": (
        "granite_speech5_ctc nemotron3_5_asr nemotron_asr_streaming parakeet_ctc parakeet_rnnt parakeet_tdt "
    ),
    "PegasusTokenizer": ("pegasus "),
    "PerceiverTokenizer": ("perceiver "),
    "PhobertTokenizer": ("phobert "),
    "ProphetNetTokenizer": ("prophetnet "),
    "Qwen2Tokenizer": (
        "audioflamingo3 colqwen2 cosmos3_omni fun_asr_nano hunyuan_vl internvl ovis2 qianfan_ocr "
        "qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl qwen3 qwen3_asr qwen3_moe "
        "qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe "
    ),
    "Qwen2TokenizerFast": ("lighton_ocr vibevoice "),
    "Qwen3_5Tokenizer": ("qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen4_exp "),
    "RagTokenizer": ("rag "),
    "ReformerTokenizer": ("reformer "),
    "RemBertTokenizer": ("rembert "),
    "RoCBertTokenizer": ("roc_bert "),
    "RoFormerTokenizer": ("roformer "),
    "RobertaTokenizer": (
        "bart bridgetower clap data2vec-text ibert lilt longformer mega mra roberta roberta-prelayernorm "
    ),
    "SeamlessM4TTokenizer": ("seamless_m4t seamless_m4t_v2 "),
    "Siglip2Tokenizer": ("siglip2 "),
    "SiglipTokenizer": ("siglip "),
    "Speech2TextTokenizer": ("speech_to_text "),
    "SpeechT5Tokenizer": ("speecht5 "),
    "SplinterTokenizer": ("splinter "),
    "T5Tokenizer": ("mt5 musicgen musicgen_melody switch_transformers t5 "),
    "TapasTokenizer": ("tapas "),
    "Tipsv2Tokenizer": ("tipsv2 "),
    "TokenizersBackend": (
        "EvollaModel arctic aria bigbird_pegasus camembertv2-base canary chameleon chatlm "
        "cohere_asr deepseek_ocr deepseek_ocr2 deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 "
        "deepseek_vl deepseek_vl_hybrid deepseek_vl_v2 ernie4_5 ernie4_5_moe flex_olmo fuyu glm "
        "glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe glm_image glmasr got_ocr2 gpt_bigcode "
        "granite granitemoe granitemoehybrid granitemoeshared h2ovl_chat hyperclovax "
        "hyperclovax_vlm internlm2 jamba janus kimi_k25 kimi_linear kosmos-2 llava llava_next "
        "mimo_v2_flash minicpm3 minicpmv minicpmv4_6 minicpmv4_7 minimax_m2 modernbert "
        "modernbert-decoder molmo molmo2 nemotron nvfp4 nystromformer olmo2 olmo3 olmo_hybrid "
        "opencua openvla paddleocr_vl pegasus_x persimmon phi3 phi3_v phimoe pix2struct smolvlm "
        "stablelm step3_vl step3p5 umt5 vipllava xlm-roberta-xl "
    ),
    "UdopTokenizer": ("udop "),
    "VideoPrismTokenizer": ("videoprism "),
    "VitsTokenizer": ("vits "),
    "Wav2Vec2CTCTokenizer": (
        "data2vec-audio hubert unispeech unispeech-sat wav2vec2 wav2vec2-bert wav2vec2-conformer "
    ),
    "Wav2Vec2PhonemeCTCTokenizer": ("wav2vec2_phoneme "),
    "WhisperTokenizer": ("whisper "),
    "XGLMTokenizer": ("xglm "),
    "XLMRobertaTokenizer": ("gte jina_embeddings_v3 metaclip_2 trocr xlm-roberta xmod "),
    "XLMTokenizer": ("xlm "),
    "XLNetTokenizer": ("xlnet "),
}
BY_MODEL_TYPE: Final = {each: name for name, types in _MODEL_TYPES.items() for each in types.split()}
WRONG_ON_HUB: Final = frozenset(
    [
        "arctic",
        "camembertv2-base",
        "chameleon",
        "chatlm",
        "cohere_asr",
        "deepseek_ocr",
        "deepseek_ocr2",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v4",
        "deepseek_vl",
        "deepseek_vl_hybrid",
        "deepseek_vl_v2",
        "ernie4_5",
        "ernie4_5_moe",
        "fuyu",
        "h2ovl_chat",
        "hyperclovax",
        "hyperclovax_vision_v2",
        "hyperclovax_vlm",
        "internlm2",
        "jamba",
        "janus",
        "llava",
        "llava_next",
        "minicpm3",
        "minicpmv",
        "minimax_m2",
        "modernbert",
        "modernbert-decoder",
        "molmo",
        "molmo2",
        "nemotron",
        "nvfp4",
        "opencua",
        "openvla",
        "paddleocr_vl",
        "phi3",
        "phi3_v",
        "phimoe",
        "qwen2",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen4_exp",
        "smolvlm",
        "step3_vl",
        "step3p5",
        "vipllava",
    ]
)
"""Model types of which `tokenizer_class` is wrong on the hub: the class of the type is taken."""
REBUILDERS: Final = frozenset(
    [
        "AlbertTokenizer",
        "BarthezTokenizer",
        "BertTokenizer",
        "BigBirdTokenizer",
        "BlenderbotTokenizer",
        "CLIPTokenizer",
        "CamembertTokenizer",
        "CodeGenTokenizer",
        "CodeLlamaTokenizer",
        "CohereTokenizer",
        "DPRContextEncoderTokenizer",
        "DPRQuestionEncoderTokenizer",
        "DPRReaderTokenizer",
        "DebertaTokenizer",
        "DebertaV2Tokenizer",
        "DistilBertTokenizer",
        "EsmcTokenizer",
        "FunnelTokenizer",
        "GPT2Tokenizer",
        "GPTNeoXTokenizer",
        "GemmaTokenizer",
        "HerbertTokenizer",
        "LasrTokenizer",
        "LayoutLMv2Tokenizer",
        "LayoutLMv3Tokenizer",
        "LayoutXLMTokenizer",
        "LlamaTokenizer",
        "LukeTokenizer",
        "MBart50Tokenizer",
        "MBartTokenizer",
        "MLukeTokenizer",
        "MPNetTokenizer",
        "MarkupLMTokenizer",
        "NllbTokenizer",
        "NougatTokenizer",
        "OpenAIGPTTokenizer",
        "PegasusTokenizer",
        "Qwen2Tokenizer",
        "Qwen3_5Tokenizer",
        "ReformerTokenizer",
        "RemBertTokenizer",
        "RoFormerTokenizer",
        "RobertaTokenizer",
        "SeamlessM4TTokenizer",
        "Siglip2Tokenizer",
        "SplinterTokenizer",
        "T5Tokenizer",
        "Tipsv2Tokenizer",
        "UdopTokenizer",
        "VideoPrismTokenizer",
        "WhisperTokenizer",
        "XGLMTokenizer",
        "XLMRobertaTokenizer",
        "XLNetTokenizer",
    ]
)
"""Classes that make their own tokenizer of vocabulary and merges."""
HUB_IDS_OF_FILES: Final = (
    "deepseek-ai/deepseek-r1-distill-llama-*",
    "deepseek-ai/deepseek-coder-*",
    "allenai/dolma2-tokenizer",
    "google/umt5-small",
    "naver-clova-ix/donut-*",
    "salesforce/blip2-opt-*",
    "salesforce/blip2-flan-t5-*",
    "salesforce/instructblip-flan-t5-*",
    "stepfun-ai/step-3.7-*",
)
"""Models of the hub with a wrong class, by their id: the file is taken as it is."""
