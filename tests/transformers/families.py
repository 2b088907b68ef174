"""Tiny random models of the families of transformers, with inputs, padded or not."""

import torch
import transformers as T

_SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_SIZES |= {"intermediate_size": 32, "max_position_embeddings": 64}
_GQA = {**_SIZES, "num_key_value_heads": 2}
_WINDOW = {**_GQA, "head_dim": 8, "sliding_window": 4}
_BART = {"vocab_size": 64, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4}
_BART |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
_CLIP = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
_CLIP |= {"projection_dim": 16}
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

# fmt: off
MODELS = {
    "llama": lambda: T.LlamaForCausalLM(T.LlamaConfig(**_GQA)),
    "mistral": lambda: T.MistralForCausalLM(T.MistralConfig(**_GQA, sliding_window=4)),
    "qwen3": lambda: T.Qwen3ForCausalLM(T.Qwen3Config(**_GQA, head_dim=8)),
    "gemma": lambda: T.GemmaForCausalLM(T.GemmaConfig(**_GQA, head_dim=8)),
    "gemma2": lambda: T.Gemma2ForCausalLM(T.Gemma2Config(**_WINDOW, query_pre_attn_scalar=8)),
    "gemma3": lambda: T.Gemma3ForCausalLM(T.Gemma3TextConfig(**_WINDOW)),
    "gpt_oss": lambda: T.GptOssForCausalLM(T.GptOssConfig(**_WINDOW, num_local_experts=2, num_experts_per_tok=1)),
    "gpt2": lambda: T.GPT2LMHeadModel(T.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64)),
    "gpt_neox": lambda: T.GPTNeoXForCausalLM(T.GPTNeoXConfig(**_SIZES)),
    "opt": lambda: T.OPTForCausalLM(T.OPTConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, ffn_dim=32,
                                                num_attention_heads=4, word_embed_proj_dim=32)),
    "phi3": lambda: T.Phi3ForCausalLM(T.Phi3Config(**_GQA, pad_token_id=0)),
    "mixtral": lambda: T.MixtralForCausalLM(T.MixtralConfig(**_GQA, num_local_experts=2, num_experts_per_tok=1)),
    "deepseek_v3": lambda: T.DeepseekV3ForCausalLM(T.DeepseekV3Config(
        **{**_SIZES, "num_key_value_heads": 4}, moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2,
        n_group=1, topk_group=1, first_k_dense_replace=1, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8,
        qk_nope_head_dim=8, v_head_dim=16)),
    "bert": lambda: T.BertForMaskedLM(T.BertConfig(**_SIZES)),
    "roberta": lambda: T.RobertaForMaskedLM(T.RobertaConfig(**_SIZES)),
    "distilbert": lambda: T.DistilBertForMaskedLM(T.DistilBertConfig(vocab_size=64, dim=32, n_layers=1, n_heads=4,
                                                                     hidden_dim=32)),
    "modernbert": lambda: T.ModernBertForMaskedLM(T.ModernBertConfig(**_SIZES, **_IDS, local_attention=8,
                                                                     cls_token_id=1, sep_token_id=2)),
    "t5": lambda: T.T5ForConditionalGeneration(T.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=32, num_layers=1,
                                                          num_heads=4)),
    "bart": lambda: T.BartForConditionalGeneration(T.BartConfig(**_BART)),
    "whisper": lambda: T.WhisperForConditionalGeneration(T.WhisperConfig(
        **_BART, **_IDS, max_source_positions=50, max_target_positions=64, num_mel_bins=16, decoder_start_token_id=1)),
    "vit": lambda: T.ViTForImageClassification(T.ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
                                                           intermediate_size=32, image_size=32, patch_size=8)),
    "clip": lambda: T.CLIPModel(T.CLIPConfig(text_config={**_CLIP, "vocab_size": 64, "eos_token_id": 2},
                                             vision_config={**_CLIP, "image_size": 32, "patch_size": 8},
                                             projection_dim=16)),
    "wav2vec2": lambda: T.Wav2Vec2Model(T.Wav2Vec2Config(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32, conv_dim=(8, 8),
        conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2, feat_extract_norm="layer",
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4)),
}
DEAF = {
    "deberta_v2": lambda: T.DebertaV2ForMaskedLM(T.DebertaV2Config(**_SIZES)),
    "bloom": lambda: T.BloomForCausalLM(T.BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4)),
    "falcon": lambda: T.FalconForCausalLM(T.FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1,
                                                         num_attention_heads=4)),
    "xlnet": lambda: T.XLNetLMHeadModel(T.XLNetConfig(vocab_size=64, d_model=32, n_layer=1, n_head=4, d_inner=32)),
    "roformer": lambda: T.RoFormerForMaskedLM(T.RoFormerConfig(**_SIZES)),
    "xglm": lambda: T.XGLMForCausalLM(T.XGLMConfig(vocab_size=64, d_model=32, num_layers=1, attention_heads=4,
                                                   ffn_dim=32)),
}
# fmt: on
DECODERS = ("llama", "mistral", "gemma2", "gemma3", "gpt_oss", "gpt2", "opt", "deepseek_v3")
_LOUD = (
    "q_proj",
    "k_proj",
    "query",
    "key",
    "qkv",
    "c_attn",
    ".q.",
    ".k.",
    "Wqkv",
    "q_lin",
    "k_lin",
    "q_b_proj",
    "kv_b",
)


def made(name):
    """A model whose scores differ enough for rows to be sparse, in eager mode."""
    torch.manual_seed(0)
    model = (MODELS | DEAF)[name]().eval()
    with torch.no_grad():
        for path, weight in model.named_parameters():
            if weight.dim() == 2 and any(part in path for part in _LOUD):
                weight.mul_(8)
            if "sinks" in path:
                weight.normal_()
    model.set_attn_implementation("eager")
    return model


def inputs(name, padding=None):
    """Arguments of a model and the tokens whose logits mean something (None: all)."""
    generator = torch.Generator().manual_seed(1)
    ids, real = torch.randint(3, 64, (2, 10), generator=generator), torch.ones(2, 10, dtype=torch.long)
    if padding:
        real[0, slice(0, 4) if padding == "left" else slice(-4, None)] = 0
    image = torch.randn(2, 3, 32, 32, generator=generator)
    if name == "vit":
        return {"pixel_values": image}, None
    if name == "wav2vec2":
        return {"input_values": torch.randn(2, 400, generator=generator)}, None
    if name == "whisper":
        return {"input_features": torch.randn(2, 16, 100, generator=generator), "decoder_input_ids": ids}, None
    given = {"input_ids": ids, "attention_mask": real}
    if name == "clip":
        ids[:, -1] = 2
        return {**given, "pixel_values": image}, None
    if name in ("t5", "bart"):
        return {**given, "decoder_input_ids": ids[:, :6]}, None
    return given, real.bool()


def logits(model, given):
    """What the model says."""
    with torch.no_grad():
        out = model(**given)
    return next(out[key] for key in ("logits", "logits_per_image", "last_hidden_state") if key in out)
