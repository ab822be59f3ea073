"""Discovery of workers: declared by the operator, probed, and joined to the fleet; their lifecycle.

roster             the fleet's endpoints              endpoint            the state of one of them
declared           settings by the operator           probe, probed       probes, and the facts from them
engine_detection   which engine an endpoint is        served_models       names that it answers to
lifecycle          joining, active, draining, ejected outlier_detection   when a failing worker is ejected
request_faults     failures of requests, not of workers
signs_of_life      what counts beside late health pages
feeds              a worker's event feed by source    bootstrap           engine ids of prefill workers
sources, lookup    URLs of several workers            claims              addresses of event hosts, pinned
dns                names with several addresses       kubernetes/         Services, pods, InferencePools
balancer_detection a balancer where one engine is expected
salt_prober, salt_proof             proofs that workers keep tenants' caches apart
name_prober        whether an endpoint answers for any model name
usable_models, refused   what a worker may report of itself, and the log of the rest
lora_loading, lora_wire             adapters, loaded while workers run
lifecycle_metrics, recovery_metrics metrics
"""
