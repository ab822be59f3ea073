// What worker.c says, as formats: the shapes of vLLM's and SGLang's answers.
#ifndef ANSWERS_H
#define ANSWERS_H

// --- generation: model, then what is said beside each; all prompts have 12 tokens ---

static const char CHAT_CHUNK[] =
    "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
    "\"model\":\"%s\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"T%020llu hello\"},"
    "\"logprobs\":null,\"finish_reason\":null}]}\n\n";
static const char TEXT_CHUNK[] =
    "data: {\"id\":\"cmpl-0123456789abcdef\",\"object\":\"text_completion\",\"created\":1700000000,"
    "\"model\":\"%s\",\"choices\":[{\"index\":0,\"text\":\"T%020llu hello world\","
    "\"logprobs\":null,\"finish_reason\":null}]}\n\n";
static const char CHAT_END[] =
    "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
    "\"model\":\"%s\",\"choices\":[{\"index\":0,\"delta\":{},"
    "\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\n%sdata: [DONE]\n\n";
static const char TEXT_END[] =
    "data: {\"id\":\"cmpl-0123456789abcdef\",\"object\":\"text_completion\",\"created\":1700000000,"
    "\"model\":\"%s\",\"choices\":[{\"index\":0,\"text\":\"\","
    "\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\n%sdata: [DONE]\n\n";
static const char USAGE_CHUNK[] =
    "data: {\"id\":\"cmpl-0123456789abcdef\",\"created\":1700000000,\"choices\":[],"
    "\"usage\":{\"prompt_tokens\":12,\"total_tokens\":21,\"completion_tokens\":9}}\n\n";
static const char CHAT_ANSWER[] =
    "{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"%s\","
    "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Hello! How can I help you today?\","
    "\"refusal\":null,\"tool_calls\":[]},\"logprobs\":null,\"finish_reason\":\"stop\"}],"
    "\"usage\":{\"prompt_tokens\":12,\"total_tokens\":21,\"completion_tokens\":9,\"prompt_tokens_details\":null},"
    "\"prompt_logprobs\":null%s}";
static const char TEXT_ANSWER[] =
    "{\"id\":\"cmpl-0123456789abcdef\",\"object\":\"text_completion\",\"created\":1700000000,\"model\":\"%s\","
    "\"choices\":[{\"index\":0,\"text\":\"Hello! How can I help?\",\"logprobs\":null,\"finish_reason\":\"stop\","
    "\"prompt_logprobs\":null}],\"usage\":{\"prompt_tokens\":12,\"total_tokens\":21,\"completion_tokens\":9}%s}";
// Where a prompt's blocks lie, for the worker that is to fetch them: their ids, engine id, port.
static const char TRANSFER[] =
    ",\"kv_transfer_params\":{\"do_remote_prefill\":true,\"do_remote_decode\":false,"
    "\"remote_block_ids\":[[%s]],\"remote_engine_id\":\"eng-%d\",\"remote_request_id\":\"r\","
    "\"remote_host\":\"127.0.0.1\",\"remote_port\":%d,\"tp_size\":1}";
static const char STREAM_HEAD[] =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nserver: uvicorn\r\n"
    "transfer-encoding: chunked\r\n\r\n";

// --- control paths ---

// model, requests running, num_gpu_blocks, start time
static const char METRICS[] =
    "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine=\"0\",model_name=\"%1$s\"} %2$d.0\n"
    "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{engine=\"0\",model_name=\"%1$s\"} 0.0\n"
    "# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{engine=\"0\",model_name=\"%1$s\"} 0.01\n"
    "# TYPE vllm:gpu_cache_usage_perc gauge\nvllm:gpu_cache_usage_perc{engine=\"0\",model_name=\"%1$s\"} 0.01\n"
    "# TYPE vllm:cache_config_info gauge\n"
    "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"%3$d\"} 1.0\n"
    "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %4$.2f\n";
static const char MODELS[] =
    "{\"object\":\"list\",\"data\":[{\"id\":\"%1$s\",\"object\":\"model\",\"created\":1700000000,"
    "\"owned_by\":\"vllm\",\"root\":\"%1$s\",\"parent\":null,\"max_model_len\":131072}]}";
static const char SERVER_INFO[] =
    "{\"model_path\":\"%1$s\",\"model_id\":\"%1$s\",\"served_model_name\":\"%1$s\",\"tokenizer_path\":\"\","
    "\"is_generation\":true,\"tp_size\":1,\"dp_size\":1,\"version\":\"0.23.0\","
    "\"max_total_num_tokens\":100000,\"max_running_requests\":256}";
static const char LOADS[] =
    "{\"server_load\":0,\"loads\":[{\"dp_rank\":0,\"num_reqs\":0,\"num_waiting_reqs\":0,"
    "\"num_running_reqs\":0,\"num_waiting_uncached_tokens\":0,\"num_used_tokens\":0,\"num_tokens\":0,"
    "\"token_usage\":0.0}]}";
static const char STATS[] =
    "{\"reqs\":%llu,\"streams\":%llu,\"aborted\":%llu,\"renders\":%llu}";

#endif
