"""The seconds of an engine's steps on a GPU, from a roofline: bytes over bandwidth, work over peak.

A decode step reads the weights once, and the keys and values of all its tokens. A prompt's step is
bound by arithmetic. To both come the time between kernels, which grows with the layers, and that of
the host. The shares of the roof are fitted to what was measured on an H200 with the embedded engine
(docs/gpu.md); tests/benchmarks/test_roofline.py states how far each measurement is from the model.
"""

from __future__ import annotations

from dataclasses import dataclass

from weftline_engine.pretend.simulation import SimulatedConfig, StepCost

BYTES = 2  # of a bfloat16 number
# The shares of the roof that the embedded engine reached on an H200: of bandwidth for weights and
# for keys and values, and of the peak for products. The attention of a prompt is assumed to reach
# half.
WEIGHTS, VALUES, PRODUCTS, ATTENTION = 0.93, 0.90, 0.70, 0.50
# Between the kernels of a captured layer, between those of a prompt's layer, and what the host
# needs to launch a layer without a graph. All three are of that H200.
GAP_S, PROMPT_GAP_S, LAUNCH_S = 25.5e-6, 100e-6, 280e-6
STREAM_S = 1.5e-6  # of the device for each sequence
COPY_S = 1 / 43.5e9  # of a byte of keys and values from host memory
# A collective of tensor parallelism takes so long, two in each layer. Assumed: NVLink's latency.
COLLECTIVE_S = 10e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU: bytes a second that a copy reaches, floating point operations a second in bfloat16,
    and bytes of memory."""

    bandwidth: float
    peak: float
    memory: float


# A copy reaches 4.387 of the H200's 4.8 TB/s. The H100 is assumed to reach the same share of the
# 3.35 TB/s of its data sheet. Both have 989 TFLOP/s dense.
H200 = Device(bandwidth=4.387e12, peak=989e12, memory=141e9)
H100 = Device(bandwidth=3.35e12 * 4.387 / 4.8, peak=989e12, memory=80e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the scheduler and the sampling add to a step, and to it for each sequence."""

    step_s: float
    stream_s: float


# Measured for the embedded engine when it planned each step after the last one's tokens were there.
# vLLM plans one step ahead; that it leaves a millisecond a step is an assumption.
EMBEDDED = Host(step_s=0.6e-3, stream_s=22e-6)
VLLM = Host(step_s=1.0e-3, stream_s=5e-6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A dense decoder. Its weights are split over `devices`."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    mlp: int
    vocabulary: int
    devices: int = 1

    @property
    def layer_weights(self) -> int:
        """The numbers in all layers."""
        attention = (2 * self.heads + 2 * self.kv_heads) * self.head_size * self.hidden
        return self.layers * (attention + 3 * self.hidden * self.mlp)

    @property
    def weight_bytes(self) -> float:
        """Bytes that a step reads on each device: all but the embedding."""
        return BYTES * (self.layer_weights + self.vocabulary * self.hidden) / self.devices

    @property
    def token_bytes(self) -> float:
        """Bytes of a token's keys and values on each device."""
        return 2 * BYTES * self.layers * self.kv_heads * self.head_size / self.devices

    def kv_tokens(self, device: Device) -> int:
        """The tokens of the KV cache in 0.9 of the memory, less weights and 3 GB of work."""
        embedding = BYTES * self.vocabulary * self.hidden / self.devices
        left = 0.9 * device.memory - self.weight_bytes - embedding - 3e9
        return int(left / self.token_bytes)


SHAPES = {
    "SmolLM2-135M": Shape(
        layers=30, hidden=576, heads=9, kv_heads=3, head_size=64, mlp=1536, vocabulary=49152
    ),
    "Qwen3-1.7B": Shape(
        layers=28, hidden=2048, heads=16, kv_heads=8, head_size=128, mlp=6144, vocabulary=151936
    ),
    "LLaMA-7B": Shape(
        layers=32, hidden=4096, heads=32, kv_heads=32, head_size=128, mlp=11008, vocabulary=32000
    ),
    "Llama-3-8B": Shape(
        layers=32, hidden=4096, heads=32, kv_heads=8, head_size=128, mlp=14336, vocabulary=128256
    ),
    "Qwen2.5-32B": Shape(
        layers=64, hidden=5120, heads=40, kv_heads=8, head_size=128, mlp=27648, vocabulary=152064
    ),
    "Llama-3-70B on 4": Shape(
        layers=80, hidden=8192, heads=64, kv_heads=8, head_size=128, mlp=28672, vocabulary=128256,
        devices=4,
    ),
}  # fmt: skip


def decode_s(shape: Shape, device: Device, streams: int, tokens: int) -> float:
    """A captured step of `streams` sequences with `tokens` tokens of context each."""
    read = shape.weight_bytes / (WEIGHTS * device.bandwidth)
    products = streams * shape.weight_bytes / (PRODUCTS * device.peak)
    values = streams * tokens * shape.token_bytes / (VALUES * device.bandwidth)
    return _between(shape) + max(read, products) + values + STREAM_S * streams


def prompt_s(shape: Shape, device: Device, tokens: int) -> float:
    """A step of one prompt, launched kernel by kernel, without its attention."""
    work = 2 * tokens * shape.layer_weights / shape.devices
    computed = PROMPT_GAP_S * shape.layers + work / (PRODUCTS * device.peak)
    return max(LAUNCH_S * shape.layers, computed)


def engine_s(shape: Shape, device: Device, host: Host, streams: int, tokens: int) -> float:
    """A decode step with the scheduler."""
    return decode_s(shape, device, streams, tokens) + host.step_s + host.stream_s * streams


def step_cost(shape: Shape, device: Device, host: Host) -> StepCost:
    """The same as a sum, which a simulated engine takes. A step with a prompt counts the read of
    the weights too: for a prompt of 2,048 tokens of an 8B shape an eighth too much."""
    return StepCost(
        step_s=_between(shape) + shape.weight_bytes / (WEIGHTS * device.bandwidth) + host.step_s,
        fill_s=2 * shape.layer_weights / shape.devices / (PRODUCTS * device.peak),
        sequence_s=STREAM_S + host.stream_s,
        token_s=shape.token_bytes / (VALUES * device.bandwidth),
        attend_s=4 * shape.layers * shape.heads * shape.head_size
        / shape.devices / (ATTENTION * device.peak),
        copy_s=shape.token_bytes * COPY_S,
    )  # fmt: skip


def config(shape: Shape, device: Device, host: Host) -> SimulatedConfig:
    """An engine with vLLM's bounds of a step: 256 sequences, and 2,048 tokens in chunks."""
    return SimulatedConfig(
        cost=step_cost(shape, device, host),
        kv_tokens=shape.kv_tokens(device),
        max_running=256,
        step_tokens=2048,
        beside_tokens=2048,
        part_tokens=8,
        context_limit=131_072,
    )


def _between(shape: Shape) -> float:
    """The time between the kernels of a captured step."""
    collectives = 2 * COLLECTIVE_S if shape.devices > 1 else 0.0
    return (GAP_S + collectives) * shape.layers
