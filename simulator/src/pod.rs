//! Renders workloads: Deployments of about 4 KB, their ReplicaSets, and Pods of 6 to 10 KB with containers,
//! probes, volumes, conditions and the managedFields that a real cluster piles up.

use serde_json::Value;

use crate::dice::mix;
use crate::manifest::{App, Deployment, Identity, Phase, Pod, ReplicaSet, clock, managed, put, uid_text};
use crate::object::Draft;

const SIDECARS: [&str; 4] = ["proxy", "log-shipper", "metrics", "vault-agent"];

pub(crate) fn pod(it: &Pod, version: u64, out: &mut Draft) {
    let app = &it.app;
    let (name, hash, at) = (it.name(), app.template_hash(it.revision), clock(it.at));
    out.push("{");
    let labels = format!(
        r#"{{"app":"{0}","app.kubernetes.io/instance":"{0}","app.kubernetes.io/part-of":"shop","pod-template-hash":"{hash}"}}"#,
        app.name
    );
    let identity = Identity {
        name: &name,
        namespace: &app.namespace,
        uid: it.uid,
        version,
        generation: Some(if it.phase == Phase::Terminating { 2 } else { 1 }),
        created: it.created,
        labels: &labels,
    };
    identity.write(out);
    if it.phase == Phase::Terminating {
        put(out, format_args!(r#","deletionTimestamp":"{at}","deletionGracePeriodSeconds":30"#));
    }
    put(
        out,
        format_args!(
            r#","annotations":{{"prometheus.io/scrape":"true","prometheus.io/port":"9090","checksum/config":"{:016x}{:016x}"}}"#,
            mix(app.seed ^ u64::from(it.revision)),
            mix(app.seed)
        ),
    );
    owner(out, "ReplicaSet", &app.replica_set(it.revision), it.owner);
    out.push(r#","managedFields":["#);
    let fields = format!(
        r#"{{"f:metadata":{{"f:annotations":{{".":{{}},"f:checksum/config":{{}},"f:prometheus.io/port":{{}},"f:prometheus.io/scrape":{{}}}},"f:generateName":{{}},"f:labels":{{".":{{}},"f:app":{{}},"f:app.kubernetes.io/instance":{{}},"f:app.kubernetes.io/part-of":{{}},"f:pod-template-hash":{{}}}},"f:ownerReferences":{{".":{{}},"k:{{\"uid\":\"{}\"}}":{{}}}}}},"f:spec":{}}}"#,
        uid_text(it.owner),
        spec_fields(app)
    );
    managed(out, "kube-controller-manager", "v1", it.created, &fields, "");
    if it.phase == Phase::Running || it.phase == Phase::Terminating {
        out.push(",");
        managed(out, "kubelet", "v1", it.at, STATUS_FIELDS, "status");
    }
    out.push("]");
    out.close_metadata();
    out.push(r#","spec":"#);
    let node = (it.phase != Phase::Pending).then(|| it.node());
    spec(out, app, it.revision, node.as_deref());
    status(out, it, &at);
}

const STATUS_FIELDS: &str = r#"{"f:status":{"f:conditions":{"k:{\"type\":\"ContainersReady\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}},"k:{\"type\":\"Initialized\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}},"k:{\"type\":\"PodReadyToStartContainers\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}},"k:{\"type\":\"Ready\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}}},"f:containerStatuses":{},"f:hostIP":{},"f:hostIPs":{},"f:phase":{},"f:podIP":{},"f:podIPs":{".":{},"k:{\"ip\":\"10.244.1.7\"}":{".":{},"f:ip":{}}},"f:startTime":{}}}"#;

/// The containers of an application: itself and up to two sidecars.
fn containers(app: &App) -> impl Iterator<Item = &str> {
    let first = app.seed as usize % SIDECARS.len();
    let sidecars = 1 + (app.seed >> 8) as usize % 2;
    std::iter::once(app.name.as_str()).chain((0..sidecars).map(move |n| SIDECARS[(first + n) % SIDECARS.len()]))
}

fn spec_fields(app: &App) -> String {
    let mut fields = String::from(r#"{"f:containers":{"#);
    for (n, name) in containers(app).enumerate() {
        if n > 0 {
            fields.push(',');
        }
        fields.push_str(&format!(r#""k:{{\"name\":\"{name}\"}}":{{".":{{}},"f:env":{{".":{{}}"#));
        for env in ENV {
            fields.push_str(&format!(r#","k:{{\"name\":\"{env}\"}}":{{".":{{}},"f:name":{{}},"f:value":{{}}}}"#));
        }
        fields.push_str(r#"},"f:image":{},"f:imagePullPolicy":{},"f:livenessProbe":{".":{},"f:failureThreshold":{},"f:httpGet":{".":{},"f:path":{},"f:port":{},"f:scheme":{}},"f:periodSeconds":{},"f:successThreshold":{},"f:timeoutSeconds":{}},"f:name":{},"f:ports":{".":{},"k:{\"containerPort\":8080,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{},"f:name":{},"f:protocol":{}}},"f:resources":{".":{},"f:limits":{".":{},"f:memory":{}},"f:requests":{".":{},"f:cpu":{},"f:memory":{}}},"f:terminationMessagePath":{},"f:terminationMessagePolicy":{},"f:volumeMounts":{}}"#);
    }
    fields.push_str(r#"},"f:dnsPolicy":{},"f:enableServiceLinks":{},"f:restartPolicy":{},"f:schedulerName":{},"f:securityContext":{},"f:serviceAccount":{},"f:serviceAccountName":{},"f:terminationGracePeriodSeconds":{},"f:volumes":{}}"#);
    fields
}

const ENV: [&str; 6] = ["LOG_LEVEL", "DATABASE_HOST", "CACHE_URL", "FEATURE_FLAGS", "REGION", "REQUEST_TIMEOUT"];

fn spec(out: &mut Draft, app: &App, revision: u32, node: Option<&str>) {
    put(
        out,
        format_args!(
            r#"{{"volumes":[{{"name":"config","configMap":{{"name":"{}-config","defaultMode":420}}}},{{"name":"scratch","emptyDir":{{}}}},{{"name":"kube-api-access","projected":{{"sources":[{{"serviceAccountToken":{{"expirationSeconds":3607,"path":"token"}}}},{{"configMap":{{"name":"kube-root-ca.crt","items":[{{"key":"ca.crt","path":"ca.crt"}}]}}}}],"defaultMode":420}}}}],"containers":["#,
            app.name
        ),
    );
    for (n, name) in containers(app).enumerate() {
        if n > 0 {
            out.push(",");
        }
        let tag = if n == 0 { revision } else { 7 };
        put(
            out,
            format_args!(
                r#"{{"name":"{name}","image":"registry.example.com/shop/{name}:1.{tag}.0","ports":[{{"name":"http","containerPort":8080,"protocol":"TCP"}}],"env":["#
            ),
        );
        for (at, env) in ENV.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let value = mix(app.seed ^ at as u64) >> 20;
            put(out, format_args!(r#"{comma}{{"name":"{env}","value":"{name}-{value:011x}.internal"}}"#));
        }
        out.push(r#"],"resources":{"limits":{"memory":"512Mi"},"requests":{"cpu":"250m","memory":"256Mi"}},"volumeMounts":[{"name":"config","mountPath":"/etc/app"},{"name":"scratch","mountPath":"/tmp"},{"name":"kube-api-access","readOnly":true,"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}],"livenessProbe":{"httpGet":{"path":"/healthz","port":8080,"scheme":"HTTP"},"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent","securityContext":{"allowPrivilegeEscalation":false,"readOnlyRootFilesystem":true}}"#);
    }
    out.push(r#"],"restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","serviceAccountName":"default","serviceAccount":"default""#);
    if let Some(node) = node {
        put(out, format_args!(r#","nodeName":"{node}""#));
    }
    out.push(r#","securityContext":{"runAsNonRoot":true},"schedulerName":"default-scheduler","tolerations":[{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":300},{"key":"node.kubernetes.io/unreachable","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}],"priority":0,"enableServiceLinks":true,"preemptionPolicy":"PreemptLowerPriority"}"#);
}

fn status(out: &mut Draft, it: &Pod, at: &str) {
    let running = matches!(it.phase, Phase::Running | Phase::Terminating);
    if it.phase == Phase::Pending {
        out.push(r#","status":{"phase":"Pending","qosClass":"Burstable"}"#);
        return;
    }
    let phase = if running { "Running" } else { "Pending" };
    put(out, format_args!(r#","status":{{"phase":"{phase}","conditions":["#));
    for (n, kind) in
        ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"].iter().enumerate()
    {
        let comma = if n > 0 { "," } else { "" };
        let value = if running || *kind == "PodScheduled" { "True" } else { "False" };
        put(
            out,
            format_args!(
                r#"{comma}{{"type":"{kind}","status":"{value}","lastProbeTime":null,"lastTransitionTime":"{at}"}}"#
            ),
        );
    }
    out.push("]");
    if running {
        let ip = format!("10.244.{}.{}", it.uid % 16, (it.uid >> 8) % 250);
        put(
            out,
            format_args!(
                r#","hostIP":"10.0.0.{0}","hostIPs":[{{"ip":"10.0.0.{0}"}}],"podIP":"{ip}","podIPs":[{{"ip":"{ip}"}}],"startTime":"{1}","containerStatuses":["#,
                it.uid % 16,
                clock(it.created)
            ),
        );
        for (n, name) in containers(&it.app).enumerate() {
            let comma = if n > 0 { "," } else { "" };
            let tag = if n == 0 { it.revision } else { 7 };
            let id = mix(it.uid as u64 ^ n as u64);
            put(
                out,
                format_args!(
                    r#"{comma}{{"name":"{name}","state":{{"running":{{"startedAt":"{at}"}}}},"lastState":{{}},"ready":true,"restartCount":0,"image":"registry.example.com/shop/{name}:1.{tag}.0","imageID":"registry.example.com/shop/{name}@sha256:{id:016x}{id:016x}{id:016x}{id:016x}","containerID":"containerd://{id:016x}{id:016x}{id:016x}{id:016x}","started":true}}"#
                ),
            );
        }
        out.push("]");
    }
    out.push(r#","qosClass":"Burstable"}"#);
}

pub(crate) fn deployment(it: &Deployment, version: u64, out: &mut Draft) {
    let app = &it.app;
    out.push("{");
    let labels = format!(r#"{{"app":"{0}","app.kubernetes.io/instance":"{0}"}}"#, app.name);
    let identity = Identity {
        name: &app.name,
        namespace: &app.namespace,
        uid: app.uid,
        version,
        generation: Some(it.generation),
        created: app.created,
        labels: &labels,
    };
    identity.write(out);
    put(out, format_args!(r#","annotations":{{"deployment.kubernetes.io/revision":"{}""#, it.revision));
    // Half of the teams deploy with `kubectl apply`, which leaves the whole manifest in an annotation.
    if app.seed.is_multiple_of(2) {
        let applied = format!(
            "{{\"apiVersion\":\"apps/v1\",\"kind\":\"Deployment\",\"metadata\":{{\"name\":\"{0}\",\"namespace\":\"{1}\"}},\"spec\":{{\"replicas\":2,\"selector\":{{\"matchLabels\":{{\"app\":\"{0}\"}}}},\"template\":{{\"spec\":{{\"containers\":[{{\"name\":\"{0}\",\"image\":\"registry.example.com/shop/{0}:1.1.0\"}}]}}}}}}}}\n",
            app.name, app.namespace
        );
        put(out, format_args!(r#","kubectl.kubernetes.io/last-applied-configuration":{}"#, Value::from(applied)));
    }
    out.push(r#"},"managedFields":["#);
    let fields = r#"{"f:metadata":{"f:annotations":{},"f:labels":{}},"f:spec":{"f:progressDeadlineSeconds":{},"f:selector":{},"f:strategy":{},"f:template":{"f:spec":{"f:containers":{}}}}}"#;
    let creator = if app.seed.is_multiple_of(2) { "kubectl-client-side-apply" } else { "argocd-controller" };
    managed(out, creator, "apps/v1", app.created, fields, "");
    if it.editor != creator {
        out.push(",");
        managed(
            out,
            it.editor,
            "apps/v1",
            it.edited,
            r#"{"f:spec":{"f:replicas":{},"f:template":{"f:spec":{"f:containers":{}}}}}"#,
            "",
        );
    }
    out.push(",");
    let fields = r#"{"f:metadata":{"f:annotations":{"f:deployment.kubernetes.io/revision":{}}},"f:status":{"f:availableReplicas":{},"f:conditions":{},"f:observedGeneration":{},"f:readyReplicas":{},"f:replicas":{},"f:updatedReplicas":{}}}"#;
    managed(out, "kube-controller-manager", "apps/v1", it.at, fields, "status");
    out.push("]");
    out.close_metadata();
    put(
        out,
        format_args!(
            r#","spec":{{"replicas":{0},"selector":{{"matchLabels":{{"app":"{1}"}}}},"template":{{"metadata":{{"labels":{{"app":"{1}"}}}},"spec":"#,
            it.replicas, app.name
        ),
    );
    spec(out, app, it.revision, None);
    let available = if it.ready >= it.replicas { "True" } else { "False" };
    put(
        out,
        format_args!(
            r#"}},"strategy":{{"type":"RollingUpdate","rollingUpdate":{{"maxUnavailable":"25%","maxSurge":"25%"}}}},"revisionHistoryLimit":10,"progressDeadlineSeconds":600}},"status":{{"observedGeneration":{},"replicas":{},"updatedReplicas":{},"readyReplicas":{},"availableReplicas":{},"conditions":[{{"type":"Available","status":"{available}","lastUpdateTime":"{}","lastTransitionTime":"{}","reason":"MinimumReplicasAvailable","message":"Deployment has minimum availability."}}]}}"#,
            it.generation,
            it.replicas,
            it.replicas,
            it.ready,
            it.ready,
            clock(it.at),
            clock(it.at)
        ),
    );
}

pub(crate) fn replica_set(it: &ReplicaSet, version: u64, out: &mut Draft) {
    let app = &it.app;
    let (name, hash) = (app.replica_set(it.revision), app.template_hash(it.revision));
    out.push("{");
    let labels = format!(r#"{{"app":"{}","pod-template-hash":"{hash}"}}"#, app.name);
    let identity = Identity {
        name: &name,
        namespace: &app.namespace,
        uid: it.uid,
        version,
        generation: Some(it.replicas + 1),
        created: it.created,
        labels: &labels,
    };
    identity.write(out);
    put(out, format_args!(r#","annotations":{{"deployment.kubernetes.io/revision":"{}"}}"#, it.revision));
    owner(out, "Deployment", &app.name, app.uid);
    out.push(r#","managedFields":["#);
    managed(
        out,
        "kube-controller-manager",
        "apps/v1",
        it.at,
        r#"{"f:metadata":{"f:annotations":{},"f:labels":{},"f:ownerReferences":{}},"f:spec":{"f:replicas":{},"f:selector":{},"f:template":{}}}"#,
        "",
    );
    out.push("]");
    out.close_metadata();
    put(
        out,
        format_args!(
            r#","spec":{{"replicas":{},"selector":{{"matchLabels":{{"app":"{1}","pod-template-hash":"{hash}"}}}},"template":{{"metadata":{{"labels":{{"app":"{1}","pod-template-hash":"{hash}"}}}},"spec":"#,
            it.replicas, app.name
        ),
    );
    spec(out, app, it.revision, None);
    put(
        out,
        format_args!(
            r#"}}}},"status":{{"replicas":{},"fullyLabeledReplicas":{},"readyReplicas":{},"observedGeneration":1}}"#,
            it.replicas, it.replicas, it.ready
        ),
    );
}

fn owner(out: &mut Draft, kind: &str, name: &str, uid: u128) {
    put(
        out,
        format_args!(
            r#","ownerReferences":[{{"apiVersion":"apps/v1","kind":"{kind}","name":"{name}","uid":"{}","controller":true,"blockOwnerDeletion":true}}]"#,
            uid_text(uid)
        ),
    );
}
