"""A recorded history, run again. The command lives here, above `kvtrail.tracer.replay`, which reads a history and steps
through it: what answers the recorded calls anew, a connector's class or a scheduler, is of the engine's side. Importing this
package needs neither vLLM nor torch; what needs them is loaded when it is asked for."""
