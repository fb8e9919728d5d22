"""Ray's options: what a file written for a Ray cluster may hold that has no meaning on one machine.

Such a key is accepted, dropped, and named in one warning. Each comes with what modeld has instead, or "".
"""

from __future__ import annotations

from collections.abc import Mapping

DEPLOYMENT_OPTIONS: Mapping[str, str] = {
    # Ray Serve's options of a deployment (`@serve.deployment`, and DeploymentSchema of its own file).
    "bundle_label_selector": "",
    "deployment_actors": "",
    "external_scaler_enabled": "",
    "gang_scheduling_config": "",
    "graceful_shutdown_timeout_s": "drain_timeout at the top level",
    "graceful_shutdown_wait_loop_s": "",
    "health_check_period_s": "",
    "health_check_timeout_s": "",
    "logging_config": "log at the top level",
    "max_constructor_retry_count": "",
    "max_queued_requests": "max_queue at the top level",
    "max_replicas_per_node": "",
    "placement_group_bundles": "num_gpus",
    "placement_group_strategy": "",
    "ray_actor_options": "num_gpus, num_cpus and ram",
    "request_router_config": "",
    "rolling_update_percentage": "",
    "route_prefix": "gateways at the top level",
    "user_config": "",
    "version": "",
    # Options of a Ray actor, which people also write directly below the model.
    "accelerator_type": "",
    "concurrency_groups": "",
    "fallback_strategy": "",
    "label_selector": "",
    "max_concurrency": "max_ongoing_requests",
    "max_pending_calls": "max_queue at the top level",
    "max_restarts": "",
    "max_task_retries": "",
    "memory": "ram",
    "object_store_memory": "",
    "placement_group": "num_gpus",
    "placement_group_bundle_index": "",
    "placement_group_capture_child_tasks": "",
    "ray_options": "",
    "resources": "",
    "runtime_env": "",
    "scheduling_strategy": "",
}
"""Below a model."""

AUTOSCALING_OPTIONS: Mapping[str, str] = {
    "aggregation_function": "",
    "downscale_smoothing_factor": "",
    "downscale_to_zero_delay_s": "downscale_delay_s",
    "downscaling_factor": "",
    "look_back_period_s": "",
    "metrics_interval_s": "",
    "policy": "",
    "smoothing_factor": "",
    "upscale_smoothing_factor": "",
    "upscaling_factor": "",
}
"""Below a model's autoscaling_config."""
