"""
What the papers measure. A file a subject: its numbers, its table and its picture.

A measurement gets a model in eval mode, batches [(inputs, targets), …] and a random generator. Inputs and targets are token ids
(B, T), or images and their classes (B,). It returns numbers for JSON, and changes neither the model nor the random state. A
sequence is also the tokens of an image. Its `show` prints the numbers, its `plot` draws those of several runs.
"""
import torch

from engine.checkpoint import whole
from engine.files import write_row
from engine.run import progress
from lab.measure.attention import attention, copying
from lab.measure.gradients import gradients, layers, sharpness
from lab.measure.hidden import hidden, transport
from lab.measure.parameters import parameters, update_sizes
from lab.measure.preflight import preflight
from lab.measure.sensitivity import jacobian, sensitivity

MEASUREMENTS = {measure.__name__: measure for measure in (
    gradients, sharpness, hidden, parameters, attention, copying, sensitivity, jacobian, layers, transport, preflight)}


def measure(model, batches, what, seed):
    """Return {name: result} of these MEASUREMENTS. The model stays as it is."""
    training = model.training
    model.eval()
    try:
        return {name: MEASUREMENTS[name](model, batches, torch.Generator(batches[0][0].device).manual_seed(seed))
                for name in progress(what, 'measurements')}
    finally:
        model.train(training)


NEEDS = dict(transport='two sequences', copying='text, in sequences of at least four tokens',
             attention='attention that calls self.kernel, without a mask of its own')
IN_TRAINING = ('gradients', 'sharpness', 'hidden', 'parameters', 'attention')


class Probe:
    """Measure IN_TRAINING every measure_interval iterations, before a step and on the same batches, and how far the step moves
    the weights; write both to measure.jsonl. All ranks must call its methods. `build` makes an untrained model."""

    def __init__(self, run, config, machine, windows, build):
        self.seed, self.machine, self.build = config['seed'], machine, build
        if machine.master and not config['eval_only']:
            self.file = run.continue_rows('measure.jsonl')
            self.batches = [machine.to_device(*windows.read(starts))
                            for starts in windows.eval_batches(config['measure_batches'], config['batch_size'])]

    def whole(self, model):
        """Return the model with all of its weights on rank 0, None on others."""
        if hasattr(model, 'unshard'):                   # fully_shard has spread it over the ranks
            weights = whole(model.state_dict(), keep=self.machine.master)
            if self.machine.master:
                model = self.build().to(self.machine.device)
                model.load_state_dict(weights)
        return model if self.machine.master else None

    def before_step(self, it, model, last):
        """Measure; behind the last step write the row, without how far a step moves."""
        if model := self.whole(model):
            self.measured = measure(model, self.batches, IN_TRAINING, self.seed)
            self.before = {name: p.detach().clone() for name, p in model.named_parameters()}
            if last:
                write_row(self.file, dict(iter=it, **self.measured))
        self.machine.wait()                             # longer than the time-out of the ranks' next sum, perhaps

    def after_step(self, it, model):
        if model := self.whole(model):
            write_row(self.file, dict(iter=it, **self.measured, updates=update_sizes(self.before, model)))
            del self.measured, self.before
