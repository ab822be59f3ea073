"""Program that makes a small model for the real engine, and rarely also the tokenizer that all engines share.

    make_model.py DIR                    random-weight Llama and the committed tokenizer in DIR
    make_model.py --train-tokenizer OUT  tokenizer.json and tokenizer_config.json, trained again

Run it with the engine environment's python: it needs torch and transformers (training: tokenizers).
The weights come from a fixed seed, so greedy output is the same wherever the model is made. The
tokenizer depends on the standard library that it is trained on, which is why its files are committed.
"""

import argparse
import json
import shutil
import sysconfig
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TOKENIZER = HERE.parents[1] / "engines" / "sim" / "tokenizer"
TEMPLATE = HERE.parent / "data" / "templates" / "chatml.jinja"

VOCAB = 8192
MAX_POSITION = 8192
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MODULES = ["argparse", "ast", "asyncio/*", "collections/*", "datetime", "difflib", "email/*", "http/*"]
MODULES += [
    "inspect",
    "json/*",
    "logging/*",
    "optparse",
    "pathlib",
    "random",
    "subprocess",
    "typing",
    "urllib/*",
]

# Not much, but every script gets its frequent letters merged instead of three bytes a character.
LANGUAGES = """
The gateway sends each request to the worker that already holds its prefix. What is the weather like today?
Das Wetter ist heute schön, und morgen gehen wir über die Brücke in die Stadt. Können Sie mir helfen?
Le temps est beau aujourd'hui ; demain nous irons à la mer. Pouvez-vous m'aider à écrire une réponse ?
Hoy hace buen tiempo y mañana iremos a la montaña. ¿Puede usted ayudarme con esta pregunta, por favor?
Oggi il tempo è bello, domani andremo in città. Perché non mi aiuti con questa domanda?
Hoje o tempo está bom e amanhã vamos à praia. Você pode me ajudar com esta questão?
Сегодня хорошая погода, а завтра мы пойдём в город. Вы можете помочь мне с этим вопросом?
Σήμερα ο καιρός είναι καλός και αύριο θα πάμε στη θάλασσα. Μπορείτε να με βοηθήσετε;
Dziś jest ładna pogoda, a jutro pójdziemy do miasta. Czy może mi pan pomóc z tym pytaniem?
Bugün hava çok güzel, yarın şehre gideceğiz. Bu soruyla bana yardım edebilir misiniz?
今天天气很好，明天我们去城里。你能帮我回答这个问题吗？请用中文写一个简短的回答。
今日は天気がいいです。明日は町へ行きます。この質問に答えてもらえますか。
오늘은 날씨가 좋고 내일은 도시에 갈 것입니다. 이 질문에 대답해 주시겠어요?
الطقس جميل اليوم وغدا سنذهب إلى المدينة. هل يمكنك مساعدتي في هذا السؤال؟
מזג האוויר יפה היום ומחר נלך לעיר. האם אתה יכול לעזור לי עם השאלה הזאת?
आज मौसम अच्छा है और कल हम शहर जाएंगे। क्या आप इस सवाल में मेरी मदद कर सकते हैं?
วันนี้อากาศดีมาก พรุ่งนี้เราจะไปในเมือง คุณช่วยฉันตอบคำถามนี้ได้ไหม
Hôm nay thời tiết đẹp, ngày mai chúng ta sẽ đi vào thành phố. Bạn có thể giúp tôi không?
😀 😂 👍 🎉 ❤️ ✅ ⚠️ 🚀 → ← ≤ ≥ ≠ × ÷ ± … – — “quoted” ‘single’ € £ ¥ © ™ ½ π ∑ √ ∞
"""


def corpus() -> list[str]:
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(path for module in MODULES for path in stdlib.glob(f"{module}.py"))
    return [path.read_text(encoding="utf-8") for path in files] + [LANGUAGES] * 20


def train_tokenizer(out: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    data = json.loads(tokenizer.to_str())
    data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]  # half the size of pairs
    out.mkdir(parents=True, exist_ok=True)
    compact = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    (out / "tokenizer.json").write_text(compact + "\n", encoding="utf-8")
    config = json.dumps(tokenizer_config(), ensure_ascii=False, indent=2)
    (out / "tokenizer_config.json").write_text(config + "\n", encoding="utf-8")


def tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITION,
        "chat_template": TEMPLATE.read_text(encoding="utf-8"),
    }


def make_model(out: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(20250601)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=MAX_POSITION,
        bos_token_id=SPECIAL.index("<|endoftext|>"),
        eos_token_id=SPECIAL.index("<|im_end|>"),
        pad_token_id=SPECIAL.index("<|endoftext|>"),
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
    for path in sorted(TOKENIZER.iterdir()):
        shutil.copy(path, out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, nargs="?", metavar="DIR")
    parser.add_argument("--train-tokenizer", type=Path, metavar="OUT")
    args = parser.parse_args()
    if args.train_tokenizer:
        train_tokenizer(args.train_tokenizer)
    if args.directory:
        make_model(args.directory)
    if not (args.train_tokenizer or args.directory):
        parser.error("name a directory")


if __name__ == "__main__":
    main()
