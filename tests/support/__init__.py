"""Helpers that tests share: stand-ins, builders, servers, and the machinery of a test run.

A helper of several tests is a file here, named for its subject; no test imports another test.

    blackbox/    a gateway process from outside, its clients and workers
    worlds/      parts of a gateway in this process, each with all that surrounds it
    stories/     gateways in this process before simulated engines

Servers and processes
    gateway_process  `kvgate serve`      engine_process   a real engine      engine_model  its model
    kube_api   Kubernetes' API server    sglang_worker    SGLang's answers   zmtp    a hostile publisher
    real_cluster   a real one            kube_drift       what both answer
    redis_servers, encrypting_redis      Redis       redis_index      an index in it
    token_issuers  JWTs                  model_hub        models         engine_talk      a real engine
    chart      the Helm chart            dashboard        the Grafana board  names   DNS in a process
    certificates  TLS in files           blockless        gateways before engines without events
Stand-ins
    fakes      engines, feeds, clocks    transports       a loop and a transport without sockets
    fake_prompts  a tokenizer            recorded_wire, recorded_holdings    they keep what they get
    http2, ext_proc   the other side of a connection
    ext_proc_oracle   messages of ext_proc, read by protobuf
Builders and texts
    agents     chats of agents           corpus           requests for comparisons of tokens
    texts      conversations             tenants          tenants and their keys
    mistral, tokenizer_models            models           admin_keys       keys for the admin API
    usage, ended_requests                requests' ends   recordings       recorded traffic
    proof_settings, template_outcomes    templates        sglang_encoders  SGLang's chats
    transfer_pairs   prefill and decode  vllm_captures    events of vLLM
    engine_data      one file per engine effort_templates templates that print efforts
    shared_tables, shared_tree           what gateways share
Runs
    patience   deadlines and waits       leaks            garbage of a test  hanging  limits of time
    life_line, dead_workers, preloaded   processes        pythons   versions of Python
    second_pass, shuffle, flake          runs of all tests
    engine_figures   a table of figures  shared_tokenizers   models, loaded once
"""
