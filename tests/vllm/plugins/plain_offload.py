"""Offloading spec for vLLM on CPU: vLLM's own manager, policies and events; only the copy is plain.

vLLM's OffloadingConnector has a worker for CUDA alone. It takes specs from outside by `spec_module_path`
(vLLM 0.32, `vllm/v1/kv_offload/factory.py`), which is how an engine loads this one: its folder is in
PYTHONPATH.
"""

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class PlainWorker(OffloadingWorker):
    """Copies blocks between the engine's cache and plain tensors, at once."""

    def __init__(self, kv_caches, blocks_per_chunk, num_chunks):
        assert blocks_per_chunk == 1, "chunks of several blocks are not copied here"
        self.live = [each.tensor for each in kv_caches.tensors]
        self.held = [torch.empty((num_chunks, *t.shape[1:]), dtype=t.dtype) for t in self.live]
        self.refs = [[ref.tensor_idx for ref in refs] for refs in kv_caches.group_data_refs]
        self.done = []

    def submit_store(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, src_spec, dst_spec, self.live, self.held, src_spec)

    def submit_load(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, src_spec, dst_spec, self.held, self.live, dst_spec)

    def get_finished(self):
        done, self.done = self.done, []
        return done

    def wait(self, job_ids):
        """Return at once: jobs end where they are submitted."""

    def _copy(self, job_id, src_spec, dst_spec, src, dst, gpu_spec):
        at = num_bytes = 0
        for group, num in enumerate(gpu_spec.group_sizes):
            ids = slice(at, at + num)
            for a, b in zip(src_spec.block_ids[ids], dst_spec.block_ids[ids], strict=True):
                for t in self.refs[group]:
                    dst[t][int(b)].copy_(src[t][int(a)])
                    num_bytes += src[t][int(a)].numel() * src[t].element_size()
            at += num
        result = TransferResult(job_id=job_id, success=True, transfer_size=num_bytes, transfer_time=1e-4)
        self.done.append(result)
        return True


class PlainCpuSpec(CPUOffloadingSpec):
    def get_worker(self, kv_caches):
        if not self._worker:
            self._worker = PlainWorker(kv_caches, self.blocks_per_chunk, self.num_chunks)
        return self._worker
