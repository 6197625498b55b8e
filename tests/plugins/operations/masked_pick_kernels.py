"""Backends for masked_pick: a right one, one that ignores a parameter, and one that lacks two."""


class B:
    name, operations = "right", ("masked_pick(K,bias,causal,cap)",)

    def available(self):
        return None

    def supports(self, case):
        return None

    def cap(self, case):
        return case.parameters.get("cap", 1.0)

    def prepare(self, case):
        cap, causal = self.cap(case), case.parameters.get("causal")

        def call(x, target, *bias):
            wide = x.float()
            seen = wide[:, : max(1, case.N // 2)] if causal else wide
            value = cap * wide.gather(1, target[:, None])[:, 0] - seen.mean(dim=-1)
            return value + bias[0].mean(dim=-1) if bias else value

        return call


class Ignores(B):
    name = "ignores-cap"

    def cap(self, case):
        return 1.0


class Lacks(B):
    name, operations = "lacks", ("masked_pick(K,bias)",)


backends = [B(), Ignores(), Lacks()]
