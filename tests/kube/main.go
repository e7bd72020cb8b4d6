// Kubernetes for the tests: the control plane, the kubelet, kubectl and a device plugin in one program, which is built
// and linked once. The name by which it is called (a symbolic link) chooses the part.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	_ "time/tzdata" // a CronJob or a log may name a time zone, and a small machine has no database of them

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// part returns the command with this name, or nil. Only that one is made: making a command registers its flags.
func part(name string) *cobra.Command {
	switch name {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		return controllermanager.NewControllerManagerCommand()
	case "kube-scheduler":
		return scheduler.NewSchedulerCommand()
	case "kubelet":
		return kubelet.NewKubeletCommand(context.Background())
	case "kubectl":
		return cmd.NewDefaultKubectlCommand()
	case "gpu-plugin":
		return newGPUPluginCommand()
	}
	return nil
}

func main() {
	name := filepath.Base(os.Args[0])
	command := part(name)
	if command == nil {
		fmt.Fprintf(os.Stderr, "No part of Kubernetes is called %q: start this program by a link with the part's name.\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(command))
}
