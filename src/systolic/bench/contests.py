"""Programs of cases whose specs belong to no op."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from systolic.bench.contest import Contest
from systolic.chips import Chip
from systolic.compiler import row_major
from systolic.ops.op_programs import Peer, RacedPrograms
from systolic.spec import SliceMesh


class LossContest(Contest):
    """Races losses. A program of gradients computes the loss, too."""

    def counted(self, spec: Any) -> Sequence[Any]:
        return (spec,) if spec.kind == "forward" else (replace(spec, kind="forward"), spec)


class NetworkContest(Contest):
    """Races parts of networks: by default many products on one device, without a public kernel."""

    def planned(self, spec: Any) -> Any:
        return None

    def mesh(self, spec: Any) -> SliceMesh | None:
        return None

    def peers(self, spec: Any, chip: Chip) -> Iterable[Peer]:
        return ()


class LayersContest(NetworkContest):
    """Races MLPs in a row."""

    def raced(self, spec: Any, chip: Chip) -> RacedPrograms:
        from systolic.bench.layer_programs import raced  # needs JAX

        return raced(spec, chip)


class MoeContest(NetworkContest):
    """Races products of experts with all arrays in the order of their dimensions, as layers of a network have them."""

    def planned(self, spec: Any) -> Any:
        return spec.planned

    def raced(self, spec: Any, chip: Chip) -> RacedPrograms:
        from systolic.bench.moe_programs import raced  # needs JAX

        programs = raced(spec, chip)
        return replace(programs, ours=row_major(programs.ours), xla=row_major(programs.xla))

    def peers(self, spec: Any, chip: Chip) -> Iterable[Peer]:
        from systolic.bench.moe_peers import peers  # needs JAX

        for peer in peers(spec):
            yield replace(peer, program=peer.program and row_major(peer.program))


class MoeLayerContest(NetworkContest):
    """Races layers of experts, each of several kernels, with arrays in the order of their dimensions too.

    XLA would have matrices of 2,880 × 2,880 the other way round, and our program would begin with copies of them.
    """

    def raced(self, spec: Any, chip: Chip) -> RacedPrograms:
        from systolic.bench.moe_layer_programs import raced  # needs JAX

        programs = raced(spec, chip)
        forms = {name: row_major(fn) for name, fn in programs.xla_forms.items()}
        return replace(programs, ours=row_major(programs.ours), xla=row_major(programs.xla), xla_forms=forms)

    def peers(self, spec: Any, chip: Chip) -> Iterable[Peer]:
        from systolic.bench.moe_layer_programs import layer_by  # needs JAX
        from systolic.bench.moe_peers import peers_of

        for peer in () if spec.dtype_rhs else peers_of(partial(layer_by, spec)):
            yield replace(peer, program=peer.program and row_major(peer.program))


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSliceContest(NetworkContest):
    """Races layers of experts over a slice; XLA's program has `jax.shard_map` too."""

    slice_mesh: SliceMesh
    xla_is_explicit: ClassVar[bool] = True

    def mesh(self, spec: Any) -> SliceMesh:
        return self.slice_mesh

    def raced(self, spec: Any, chip: Chip) -> RacedPrograms:
        from systolic.bench.moe_device_programs import raced  # needs JAX

        return raced(spec, chip)

    def peers(self, spec: Any, chip: Chip) -> Iterable[Peer]:
        from systolic.bench.moe_slice_peers import peers  # needs JAX

        return () if spec.dtype_rhs else peers(spec, chip, self.slice_mesh)


class PatternContest(NetworkContest):
    """Races block-sparse products with blocks where a pattern has them."""

    def planned(self, spec: Any) -> Any:
        return spec.planned

    def raced(self, spec: Any, chip: Chip) -> RacedPrograms:
        from systolic.bench.sparse_programs import raced  # needs JAX

        return raced(spec, chip)

    def peers(self, spec: Any, chip: Chip) -> Iterable[Peer]:
        from systolic.bench.sparse_programs import peers  # needs JAX

        return peers(spec)


class ShardedContest(NetworkContest):
    """Race products on a slice: ours on a mesh with explicit axes, XLA's on a mesh with automatic axes."""

    def planned(self, spec: Any) -> Any:
        return None if spec.kind == "mlp" else spec.part

    def mesh(self, spec: Any) -> SliceMesh:
        return SliceMesh.of(spec.topology, **dict(spec.mesh))

    def raced(self, spec: Any, chip: Chip) -> RacedPrograms:
        from systolic.bench.sharded_programs import raced  # needs JAX

        return raced(spec, chip)

    def peers(self, spec: Any, chip: Chip) -> Iterable[Peer]:
        from systolic.bench.sharded_peers import peers  # needs JAX

        return peers(spec, chip)
