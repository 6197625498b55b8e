"""Where an actor is placed."""


class NodeAffinitySchedulingStrategy:
    def __init__(self, node_id, soft):
        assert soft is False
        self.node_id = node_id
